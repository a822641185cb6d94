"""Records whose values are none: named, left out, and the page is made from the rest."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jobs.record import SCHEMA, RankRecord, record_path
from pipeline.cli import main
from pipeline.sound import fault_of
from pipeline.store import read_store
from tests.pipeline.many_records import GOLDEN
from tests.pipeline.test_report import contents_of, page_of
from tests.pipeline.test_store import a_cell, write


def edit(path: Path, line: int, **changes: Any) -> None:
    """Change fields of one line, given as ``observed__peak_bytes``."""
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    for name, value in changes.items():
        *parents, last = name.split("__")
        place = lines[line]
        for parent in parents:
            place = place[parent]
        place[last] = value
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))


@pytest.fixture
def out(tmp_path: Path, stub: ModuleType) -> Path:
    write(tmp_path / "sweep", stub, a_cell("topology=ep1_cp1"), 0, "ok", "ok", "ok")
    return tmp_path / "sweep"


@pytest.fixture
def path(out: Path) -> Path:
    return record_path(out, a_cell("topology=ep1_cp1").key, 0, 0)


def test_records_of_a_real_study_are_sound() -> None:
    """Reference: the default study's own records, as its ranks wrote them."""
    store = read_store(GOLDEN)
    assert store.cells
    assert [fault_of(record) for cell in store.cells for record in cell.records] == [""] * 30


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"observed__working_set_bytes": -1}, "observed.working_set_bytes = -1 is negative"),
        ({"planned__expected_bytes": float("nan")}, "planned.expected_bytes = nan is no int"),
        ({"planned__bound_bytes": "12"}, "planned.bound_bytes = '12' is no int"),
        ({"planned__growth_bytes": True}, "planned.growth_bytes = True is no int"),
        ({"observed__terms": {"a.b": -3}}, "observed.terms['a.b'] = -3 is negative"),
        ({"observed__terms": [1]}, "observed.terms = [1] is no dict"),
        ({"observed__call_s": float("inf")}, "observed.call_s = inf is no finite number"),
        ({"observed__timeline": [[1]]}, "observed.timeline[0] = [1] is no list of 2"),
        ({"observed__routed_rows": [2, None]}, "observed.routed_rows[1] = None is no int"),
        ({"planned__unpriced": "all"}, "planned.unpriced = 'all' is no list"),
        ({"loss": float("nan")}, "loss = nan is no finite number"),
    ],
)
def test_a_wrong_value_is_named_and_costs_its_record_alone(
    out: Path, path: Path, changes: dict[str, Any], fault: str
) -> None:
    """Reference: the types that the record declares; whole numbers count something."""
    edit(path, 1, **changes)
    store = read_store(out)
    key = a_cell("topology=ep1_cp1").key
    assert store.faults == (f"{key} rank 0 call 1: {fault}; the record was left out",)
    held = contents_of(page_of(out))
    assert held["calls"]["call"] == [0, 2]
    assert held["cells"]["outcome"] == ["incomplete"]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"rank": None}, "rank None is no whole number of at least 0"),
        ({"call": "1"}, "call '1' is no whole number of at least 0"),
        ({"attempt": -1}, "attempt -1 is no whole number of at least 0"),
        ({"label": 7}, "label 7 is no text"),
    ],
)
def test_what_records_are_put_in_order_by_is_checked_as_they_are_read(
    out: Path, path: Path, changes: dict[str, Any], fault: str
) -> None:
    """Reference: the record's own fields; without them no order of the rest would be known."""
    edit(path, 1, **changes)
    (found,) = read_store(out).faults
    assert found == f"{path.name}:2: {fault}"
    assert contents_of(page_of(out))["calls"]["call"] == [0, 2]


def test_a_later_schema_is_said_and_leaves_the_rest(out: Path, path: Path) -> None:
    """Reference: the record's own reader, which takes one schema."""
    edit(path, 0, schema=SCHEMA + 1)
    page = page_of(out)
    assert f"schema {SCHEMA + 1}; this version reads {SCHEMA}" in page
    assert contents_of(page)["calls"]["call"] == [1, 2]


def test_a_folder_of_later_records_alone_is_said(
    out: Path, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reference: house rule 7; the exit code that the command promises."""
    for line in range(3):
        edit(path, line, schema=SCHEMA + 1)
    with pytest.raises(SystemExit) as left:
        main(["report", str(out)])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert f"schema {SCHEMA + 1}; this version reads {SCHEMA}" in said
    assert f"{out} holds no record that can be read" in said


def test_a_sweep_where_all_failed_has_a_page_and_no_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reference: the record's own words, of which one is no text in UTF-8, and its log's name."""
    spec = a_cell("topology=ep1_cp1")
    failed = RankRecord(
        key=spec.key,
        label=spec.label,
        attempt=1,
        rank=0,
        call=0,
        temperature="cold",
        outcome="error",
        error="RuntimeError: <b>no</b> such file: \udcff",
    )
    (tmp_path / "specs").mkdir()
    spec.write(tmp_path / "specs" / f"{spec.key}.json")
    path = record_path(tmp_path, spec.key, 1, 0)
    path.parent.mkdir()
    path.write_text(failed.to_line() + "\n{torn}\n")
    log = tmp_path / "logs" / f"{spec.key}.a1.r0.log"
    log.parent.mkdir()
    log.touch()
    with pytest.raises(SystemExit) as left:
        main(["report", str(tmp_path), "--picture", str(tmp_path / "none.png")])
    assert left.value.code == 2
    said = capsys.readouterr()
    assert "no picture" in said.err
    assert str(log) in said.out
    assert "no such file: \\udcff" in said.out.replace("<b>no</b>", "no")
    cells = contents_of((tmp_path / "report.html").read_text())["cells"]
    assert (cells["outcome"], cells["error"]) == (["failed"], [f"rank 0: {failed.error}"])
