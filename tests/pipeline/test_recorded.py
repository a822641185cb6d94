"""Records read a few at a time: the same in one process and in many, memory that does not grow."""

import json
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from pipeline import recorded
from pipeline.certificate import sightings_digest
from pipeline.recorded import read_recorded
from pipeline.store import read_store
from tests.conftest import GOLDEN

STUDY = GOLDEN / "default_study"


def copies_of(study: Path, out: Path, times: int) -> Path:
    """Write a study several times over, each under other keys."""
    for folder in ("records", "specs"):
        (out / folder).mkdir(parents=True)
    for spec in study.glob("specs/*.json"):
        for copy in range(times):
            key = f"{copy:04x}{spec.stem[4:]}"
            shutil.copy(spec, out / "specs" / f"{key}.json")
            for path in study.glob(f"records/{spec.stem}.*"):
                lines = [json.loads(line) | {"key": key} for line in path.open()]
                there = out / "records" / path.name.replace(spec.stem, key)
                there.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return out


def test_a_fit_reads_what_the_store_reads():
    """Reference: the store, which reads records by their own reader."""
    records = [r for cell in read_store(STUDY).cells for r in cell.records]
    sightings = read_recorded(STUDY).sightings
    assert len(sightings) == len(records)
    by_label = {f"{r.label} rank {r.rank} call {r.call}": r for r in records}
    for place, label in enumerate(sightings.labels):
        seen = by_label[label].observed
        assert sightings.observed[place] == seen.working_set_bytes
        rows = sightings.rows[place].tolist()
        assert rows == seen.routed_rows
        mine = sightings.terms.sighting == place
        assert set(sightings.terms.observed[mine]) <= set(seen.terms.values())


def test_many_processes_read_the_same(tmp_path, monkeypatch):
    """Law: how many read, and how much at a time, is not seen in what was read."""
    out = copies_of(STUDY, tmp_path, 6)
    alone = read_recorded(out)
    monkeypatch.setattr(recorded, "MANY", 1)
    monkeypatch.setattr(recorded, "AT_ONCE", 5)
    monkeypatch.setattr(recorded.os, "sched_getaffinity", lambda _: {0, 1})
    together = read_recorded(out)
    assert sightings_digest(together.sightings) == sightings_digest(alone.sightings)
    assert np.array_equal(together.sightings.cell.code, alone.sightings.cell.code)
    assert together.candidates.keys() == alone.candidates.keys()


def test_memory_holds_figures_and_never_the_records(tmp_path, monkeypatch):
    """Law: beside what a fit keeps, parts and whole, less is held at once than half the records.

    Had they been held, their text alone would take as much as all of it; one part of twelve is
    read and decoded at a time.
    """
    monkeypatch.setattr(recorded, "AT_ONCE", 6)
    out = copies_of(STUDY, tmp_path, 12)
    files = [path.stat().st_size for path in out.glob("records/*")]
    read_recorded(out)  # what a process keeps once is not counted
    tracemalloc.start()
    kept = read_recorded(out)
    now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(kept.sightings) == 12 * len(read_recorded(STUDY).sightings)
    assert now < sum(files) / 2
    assert peak - 2 * now < sum(files) / 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"temperature": "lukewarm"}, "lukewarm"),
        ({"rank": 7}, "rank 7"),
        ({"outcome": "ok", "observed": None}, "not observed"),
        ({"call": "first"}, "call"),
    ],
)
def test_a_line_that_is_no_call_of_its_cell_is_said(change, words, tmp_path):
    """Law: what a record cannot be is left out with its reason, and the other lines count."""
    study = Path(shutil.copytree(STUDY, tmp_path / "study"))
    path = min(study.glob("records/*.jsonl"))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0] |= change
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read_recorded(study)
    assert len(found.sightings) == len(read_recorded(STUDY).sightings) - 1
    (said,) = [*found.faults, *found.excluded]
    assert words in said


@pytest.mark.parametrize("lines", [0, 1])
def test_a_file_without_a_readable_record_is_said(lines, tmp_path):
    """Law: an attempt that left nothing is a fault, and the other cells count."""
    study = Path(shutil.copytree(STUDY, tmp_path / "study"))
    path = min(study.glob("records/*.jsonl"))
    key = path.name.split(".")[0]
    for other in study.glob(f"records/{key}.*"):
        other.write_text("{torn\n" * lines)
    faults = read_recorded(study).faults
    assert any(f"{key}: its newest attempt left no readable record" in fault for fault in faults)
