"""Published allocator facts beside traced ones: a page from real records of fake ranks."""

import subprocess
import sys
from dataclasses import replace

import pytest

from jobs.record import RankRecord
from jobs.spec import Calls, CellSpec, Meter, Weights, Workload
from pipeline.facts import page
from pipeline.store import read_store
from planner.step import Step
from planner.topology import Topology
from tests.conftest import qwen

CELLS = {"ep1_cp2": Topology(cp=2), "ep2_cp2": Topology(cp=2, ep=2)}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Two cells of the published geometry, run on fake ranks in one process."""
    out = tmp_path_factory.mktemp("facts")
    program = (
        "import sys; from pathlib import Path; from jobs.rank import main\n"
        "for spec in sys.argv[2:]: main(Path(spec), Path(sys.argv[1]), 0, '')"
    )
    paths = []
    for name, topology in CELLS.items():
        spec = CellSpec(
            model=qwen(num_layers=8),
            topology=topology,
            topology_name=name,
            step=Step(),
            weights=Weights(name="even"),
            workload=Workload(name="seeds", requests=(19_475,) * 7 + (19_476,) * 3),
            calls=Calls(name="pair", measured=2),
            meter=Meter(ranks=(0,)),
            backend="fake",
        )
        (out / "specs").mkdir(exist_ok=True)
        paths.append(out / "specs" / f"{spec.key}.json")
        spec.write(paths[-1])
    done = subprocess.run(
        [sys.executable, "-c", program, str(out), *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return read_store(out)


def records(store) -> list[RankRecord]:
    """Every record of a store."""
    return [record for cell in store.cells for record in cell.records]


def test_published_facts_come_out(store):
    """Published figures: elements a routed row, the shared pair, what is held over at EP2."""
    text = page(store)
    assert "| 11,792 | 11,792.0 |" in text
    assert text.count("| 4,096 + 4,096 B | 8,194 B |") == 2
    assert "| 8.4 GB, about 1 a layer | 8.41 GB, 1.05 a layer |" in text


def test_expected_is_what_full_size_ranks_see(store):
    """Second implementation: every allocation of Qwen3.6-35B-A3B at full size, cold and warm.

    The planner's own bar is 2 %, with at most 1 % of the peak unattributed and none above bound.
    """
    assert len(records(store)) == 4
    for record in records(store):
        planned, seen = record.planned, record.observed
        assert planned.expected_bytes == pytest.approx(seen.working_set_bytes, rel=0.02)
        assert seen.working_set_bytes <= planned.bound_bytes
        assert seen.unattributed_bytes <= 0.01 * seen.working_set_bytes
        assert planned.held_over_bytes == pytest.approx(seen.held_over_bytes, rel=0.02)
        assert planned.growth_bytes == pytest.approx(seen.growth_bytes, rel=0.001)
        assert seen.garbage_bytes == 0


def test_facts_that_were_not_measured_are_said(store):
    """Reference: half of the cells."""
    half = replace(store, cells=store.cells[:1])
    assert "not in these records" in page(half)
