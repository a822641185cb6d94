"""The page: self-contained, whole when records are not, and its charts compile."""

import json
import re
from pathlib import Path
from types import ModuleType

import pytest
import vl_convert

from jobs.record import record_path
from pipeline.report.charts import write_picture
from pipeline.report.page import write_page
from pipeline.store import read_store
from tests.pipeline.test_store import a_cell, write


@pytest.fixture
def out(tmp_path: Path, stub: ModuleType) -> Path:
    """A sweep with everything in it: two kinds of weights, a failure, a refusal, a torn line."""
    for topology in ("ep1_cp1", "ep2_cp2"):
        for weights in ("random", "pretrained"):
            spec = a_cell(f"topology={topology}", f"weights={weights}")
            write(tmp_path, stub, spec, 0, "ok", "ok", "ok")
    write(tmp_path, stub, a_cell("calls=cold"), 0, "error")
    write(tmp_path, stub, a_cell("meter.budget_gib=0.01"), 0, "refused")
    torn = record_path(tmp_path, spec.key, 0, 0)
    torn.write_text(torn.read_text() + '{"key": <script>alert(1)</script>')
    return tmp_path


def page_of(out: Path) -> str:
    write_page(read_store(out), out / "report.html")
    return (out / "report.html").read_text()


def without_scripts(page: str) -> str:
    return re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)


def specs_of(page: str) -> list[dict[str, object]]:
    found = re.search(r"const specs = (\[.*\]);\n", page)
    assert found is not None
    specs: list[dict[str, object]] = json.loads(found[1].replace("<\\/", "</"))
    return specs


def test_the_page_needs_nothing_else(out: Path) -> None:
    """Reference: the HTML attributes that make a browser fetch; links to logs are only followed."""
    page = page_of(out)
    assert not re.search(r"\ssrc=|<link|@import|url\(", without_scripts(page))
    assert "vegaEmbed" in page


def test_every_section_is_there_and_its_chart_compiles(out: Path) -> None:
    """Reference: the report's list of contents; the Vega-Lite compiler rejects a wrong chart."""
    page = page_of(out)
    titles = re.findall(r"<h2>(.*?)</h2>", without_scripts(page))
    assert titles == [
        "Cells",
        "Predicted against observed",
        "Error by cell",
        "Residual by term",
        "Buffer growth",
        "Held over",
        "Cold against warm",
        "Random against pretrained",
        "Ledger overhead",
        "Files",
    ]
    specs = specs_of(page)
    assert len(specs) == len(titles) - 2
    for spec in specs:
        assert vl_convert.vegalite_to_svg(spec).startswith("<svg")


def test_what_went_wrong_has_a_line_with_its_reason(out: Path) -> None:
    """Reference: the stub's reason for refusing; the torn line put there by hand."""
    page = page_of(out)
    troubles = re.findall(r'<li class="(.*?)">', page)
    assert sorted(troubles) == ["failed", "fault", "refused"]
    assert "the batch needs 110 MiB, the room is 10 MiB" in page


def test_the_log_of_every_rank_is_linked(out: Path) -> None:
    """Reference: the naming rule of logs; a link to a file that is not there would be broken."""
    logs = out / "logs"
    logs.mkdir()
    key = a_cell("calls=cold").key
    (logs / f"{key}.a0.r1.log").touch()
    assert set(re.findall(r"href='(logs/.*?)'", page_of(out))) == {f"logs/{key}.a0.r1.log"}


def test_text_from_records_is_text_on_the_page(out: Path) -> None:
    """Reference: HTML's own rule; a record's words must never run as a script."""
    assert "<script>alert(1)" not in page_of(out)


def test_figures_of_the_table_are_those_of_the_records(out: Path) -> None:
    """Reference: by hand; rank 1 of ep2_cp2 expects 110 MiB and is observed 1 % under."""
    page = page_of(out)
    (cold,) = re.findall(r"<tr><td>ep2_cp2 random both</td><td>cold</td>(.*?)</tr>", page)
    cells = re.findall(r"<td>(.*?)</td>", cold)
    assert cells[:6] == ["110.00", "121.00", "108.90", "-1.00 %", "-1.00 %", "2/2"]
    assert cells[6:8] == ["3.00", "3.00"]


def test_a_sweep_with_nothing_observed_still_has_a_page(tmp_path: Path, stub: ModuleType) -> None:
    """Reference: a folder where every cell was refused."""
    write(tmp_path, stub, a_cell(), 0, "refused")
    page = page_of(tmp_path)
    assert specs_of(page) == []
    assert '<li class="refused">' in page


def test_the_picture_is_a_png(out: Path, tmp_path: Path) -> None:
    """Reference: the PNG specification's eight first bytes."""
    write_picture(read_store(out), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(ValueError, match="no observed call"):
        write_picture(read_store(tmp_path / "empty"), tmp_path / "none.png")
