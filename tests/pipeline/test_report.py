"""The page: self-contained, whole when records are not, and its charts compile."""

import itertools
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import vl_convert

from jobs.record import record_path, write_records
from pipeline.report.contents import unpack
from pipeline.report.page import write_page
from pipeline.report.picture import write_picture
from pipeline.store import read_store
from tests.pipeline.many_records import write_many
from tests.pipeline.test_store import a_cell, write


@pytest.fixture
def out(tmp_path: Path, stub: ModuleType) -> Path:
    """A sweep with everything in it: two kinds of weights, a failure, a refusal, a torn line."""
    sweep = tmp_path / "sweep"
    for topology in ("ep1_cp1", "ep2_cp2"):
        for weights in ("random", "pretrained"):
            spec = a_cell(f"topology={topology}", f"weights={weights}")
            write(sweep, stub, spec, 0, "ok", "ok", "ok")
    write(sweep, stub, a_cell("calls=cold"), 0, "error")
    write(sweep, stub, a_cell("meter.budget_gib=0.01"), 0, "refused")
    torn = record_path(sweep, spec.key, 0, 0)
    torn.write_text(torn.read_text() + '{"key": <script>alert(1)</script>')
    return sweep


def page_of(out: Path) -> str:
    write_page(read_store(out), out / "report.html")
    return (out / "report.html").read_text()


def element_of(page: str, identity: str) -> str:
    found = re.search(rf'<script type="[a-z/]*" id="{identity}">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return found[1]


def contents_of(page: str) -> dict[str, Any]:
    return unpack(element_of(page, "contents"))


def without_scripts(page: str) -> str:
    return re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def test_the_page_needs_nothing_else(out: Path) -> None:
    """Reference: the HTML attributes that make a browser fetch, and its policy against fetching."""
    page = page_of(out)
    bare = without_scripts(page)
    assert not re.search(r"\ssrc=|@import|url\(", bare)
    assert re.findall(r'<link [^>]*href="([^"]*)"', bare) == ["data:,"]
    assert "default-src 'none'" in bare
    assert "vegaEmbed" in page


def test_every_section_is_there_and_its_chart_compiles(out: Path) -> None:
    """Reference: the report's list of contents; the Vega-Lite compiler rejects a wrong chart."""
    page = page_of(out)
    assert re.findall(r"<h2[^>]*>(.*?)</h2>", without_scripts(page)) == [
        "Cells",
        "One call",
        "Predicted against observed",
        "Error by cell",
        "Residual by term",
        "Buffer growth",
        "Held over",
        "Garbage",
        "Cold against warm",
        "Weights against weights",
        "Ledger overhead",
        "What releasing dispatcher state saves",
        "Coefficients",
        "Fitted copies from fit to fit",
        "Coverage from fit to fit",
        "Error from sweep to sweep",
        "Files",
    ]
    specs = json.loads(element_of(page, "specs"))
    assert set(specs["of_call"]) == {"stack", "waterfall", "timeline"}
    for name, spec in specs["charts"].items():
        assert f'id="section-{name}"' in page
        assert f'id="chart-{name}"' in page
        assert vl_convert.vegalite_to_svg(spec).startswith("<svg")


def test_what_went_wrong_has_its_reason(out: Path) -> None:
    """Reference: the stub's reason for refusing; the torn line put there by hand."""
    page = page_of(out)
    cells = contents_of(page)["cells"]
    assert sorted(cells["outcome"]) == ["failed", "ok", "ok", "ok", "ok", "refused"]
    reason = cells["error"][cells["outcome"].index("refused")]
    assert reason == "rank 0: the batch needs 110 MiB, the room is 10 MiB"
    assert len(re.findall(r'<li class="fault">', page)) == 1


def test_an_incomplete_cell_says_whose_records_are_missing(out: Path) -> None:
    """Reference: a rank's file removed by hand."""
    key = a_cell("topology=ep2_cp2", "weights=random").key
    record_path(out, key, 0, 1).unlink()
    cells = contents_of(page_of(out))["cells"]
    place = cells["key"].index(key)
    assert cells["outcome"][place] == "incomplete"
    assert cells["error"][place] == "records are missing of rank 1"


def test_the_log_of_every_rank_is_linked(out: Path) -> None:
    """Reference: the naming rule of logs; a link to a file that is not there would be broken."""
    logs = out / "logs"
    logs.mkdir()
    key = a_cell("calls=cold").key
    (logs / f"{key}.a0.r1.log").touch()
    cells = contents_of(page_of(out))["cells"]
    linked = dict(zip(cells["key"], cells["logs"], strict=True))
    assert linked.pop(key) == {"1": f"logs/{key}.a0.r1.log"}
    assert set(map(len, linked.values())) == {0}


def test_text_from_records_is_text_on_the_page(out: Path) -> None:
    """Reference: HTML's own rule; a record's words must never run as a script."""
    assert "<script>alert(1)" not in page_of(out)


def test_figures_of_the_table_are_those_of_the_records(out: Path) -> None:
    """Reference: by hand; rank 1 of ep2_cp2 expects 110 MiB and is observed 1 % under."""
    held = contents_of(page_of(out))
    groups, calls = held["groups"], held["calls"]
    cell = held["cells"]["label"].index("ep2_cp2 random both")
    (cold,) = [
        group
        for group, one in enumerate(groups["cell"])
        if one == cell and groups["temperature"][group] == "cold"
    ]
    place = groups["fullest"][cold]
    mib = 2**20
    assert [
        calls[name][place] for name in ("expected", "bound", "observed", "growth_observed")
    ] == [
        110 * mib,
        121 * mib,
        110 * mib * 99 // 100,
        3 * mib,
    ]
    assert groups["worst"][cold] == calls["error"][place] == pytest.approx(-1, abs=1e-5)
    assert (groups["covered"][cold], groups["observed"][cold]) == (2, 2)


def test_a_sweep_with_nothing_observed_still_has_a_page(tmp_path: Path, stub: ModuleType) -> None:
    """Reference: a folder where every cell was refused."""
    write(tmp_path, stub, a_cell(), 0, "refused")
    held = contents_of(page_of(tmp_path))
    assert held["cells"]["outcome"] == ["refused"]
    assert set(held["calls"]["observed"]) == {None}


@pytest.mark.parametrize(
    ("name", "start"), [("one.png", b"\x89PNG\r\n\x1a\n"), ("one.svg", b"<svg")]
)
def test_the_print_is_a_picture(out: Path, tmp_path: Path, name: str, start: bytes) -> None:
    """Reference: the eight first bytes that PNG prescribes; SVG's root element."""
    write_picture(read_store(out), tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_the_print_shows_the_timeline_where_records_hold_one(tmp_path: Path) -> None:
    """Reference: the place of the peak that the records were written with."""
    write_many(tmp_path / "few", 4)
    write_picture(read_store(tmp_path / "few"), tmp_path / "few.svg")
    assert "peak: recompute decoder.layers.0.mlp.experts.fc1" in (tmp_path / "few.svg").read_text()


def test_cells_of_any_size_stand_apart_in_the_scatter(tmp_path: Path, stub: ModuleType) -> None:
    """Reference: by hand; twice as much is as far anywhere, and 32 MiB to 32 GiB are ten doublings.

    On an axis of equal bytes the four cells of up to 256 MiB would share a hundredth of it.
    """
    for number, doubled in enumerate((5, 6, 7, 8, 14, 15)):
        spec = a_cell("topology=ep1_cp1", "calls=cold", f"weights.seed={number}")
        write(tmp_path, stub, spec, 0, "ok")
        one = stub.record(spec, 0, 0, 0)
        one.planned.expected_bytes = one.observed.working_set_bytes = 2**doubled * 2**20
        one.planned.bound_bytes = one.planned.expected_bytes * 11 // 10
        write_records(record_path(tmp_path, spec.key, 0, 0), [one])
    write_picture(read_store(tmp_path), tmp_path / "sizes.svg")
    picture = (tmp_path / "sizes.svg").read_text()
    across = [
        float(found)
        for found in re.findall(
            r'aria-label="expected: [^"]*" role="graphics-symbol"[^>]*'
            r'transform="translate\(([\d.]+),',
            picture,
        )
    ]
    steps = [one - other for one, other in itertools.pairwise(sorted({*across}, reverse=True))]
    doubling = steps[0]
    assert steps == pytest.approx([doubling, 6 * doubling, doubling, doubling, doubling], rel=1e-3)
    for label in ("64 MiB", "256 MiB", "1 GiB", "16 GiB"):
        assert f">{label}</text>" in picture


def test_nothing_observed_makes_no_picture(tmp_path: Path) -> None:
    """Reference: house rule 7."""
    with pytest.raises(ValueError, match="no observed call"):
        write_picture(read_store(tmp_path / "empty"), tmp_path / "none.png")
