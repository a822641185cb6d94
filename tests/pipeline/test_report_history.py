"""Coefficients on the page: copies at the peaks, and how tables did across sweeps."""

import json
import re
import shutil
from importlib import resources
from pathlib import Path
from types import ModuleType

import pytest

from pipeline.report.history import Fit, read_fits, read_history, standings, write_standings
from pipeline.report.trends import MOST_LINES, trends
from pipeline.store import read_store, rows
from planner.coefficients import Coefficients, table_digest
from planner.moments import Moment
from tests.pipeline.many_records import GOLDEN
from tests.pipeline.test_report import contents_of, page_of, without_scripts
from tests.pipeline.test_store import a_cell, write

CERTIFICATE = Path(str(resources.files("planner.tables") / "nonfull-h200.certificate.json"))


@pytest.fixture
def sweeps(tmp_path: Path, stub: ModuleType) -> Path:
    """Two sweeps in one folder, each with its page."""
    for name in ("monday", "tuesday"):
        write(tmp_path / name, stub, a_cell("topology=ep1_cp1"), 0, "ok", "ok", "ok")
        page_of(tmp_path / name)
    return tmp_path


def test_a_standing_sums_up_the_records_of_a_table() -> None:
    """Reference: the store's rows, counted here."""
    store = read_store(GOLDEN)
    (one,) = standings(store)
    table = rows(store)
    assert (one.sweep, one.table, one.calls) == ("default_study", "megatron-local", len(table))
    assert one.digest == table_digest("megatron-local")
    assert one.covered == sum(row["covered"] for row in table)
    assert one.worst_percent == pytest.approx(max(abs(row["error_percent"]) for row in table))


def test_a_page_tells_of_the_sweeps_beside_it(sweeps: Path) -> None:
    """Reference: by hand; the stub's calls are 1 % under, three a sweep."""
    page = without_scripts(page_of(sweeps / "tuesday"))
    for name in ("monday", "tuesday"):
        assert f"<tr><td>{name}</td>" in page
    assert page.count("<td>megatron-local</td>") == 2
    assert page.count("<td>1.00 %</td><td>3 of 3</td>") == 2


def test_copies_of_the_expected_peaks_are_listed(sweeps: Path) -> None:
    """Reference: the table itself; the recorded study's plans peak at recompute_fc2."""
    shutil.copytree(GOLDEN, sweeps / "real")
    page = without_scripts(page_of(sweeps / "real"))
    entries = [
        entry
        for entry in Coefficients.load("megatron-local").copies
        if entry.term == "experts.fc2_outputs" and Moment.RECOMPUTE_FC2 in entry.at
    ]
    listed = re.findall(
        r"<td>experts.fc2_outputs</td><td>[^<]*</td><td>recompute_fc2</td><td>([\d.]+)</td>", page
    )
    assert listed == [f"{entry.at[Moment.RECOMPUTE_FC2] / 1000:g}" for entry in entries]
    assert listed


def test_fitted_copies_have_their_intervals(sweeps: Path) -> None:
    """Reference: the shipped certificate's own figures, copied as if fitted into a sweep."""
    shutil.copy(CERTIFICATE, sweeps / "monday" / "fitted.certificate.json")
    page = without_scripts(page_of(sweeps / "tuesday"))
    certificate = json.loads(CERTIFICATE.read_text())
    for one in certificate["coefficients"]:
        low, high = one["interval"]
        shown = f"{one['copies']:g} [{low:g}, {high:g}]" + " prior" * (one["from"] == "prior")
        row = page.partition(f"<tr><td>{one['name']}</td>")[2].partition("</tr>")[0]
        assert f"<td>{shown}</td>" in row  # beside the columns of certificates of other tables
    assert f"fitted {certificate['fit']['date']} on {certificate['sightings']['measured']}" in page


def test_the_same_table_is_told_once_oldest_fit_first(sweeps: Path) -> None:
    """Reference: by hand; two dates put into copies of the shipped certificate."""
    certificate = json.loads(CERTIFICATE.read_text())
    for folder, date, digest in (
        ("tuesday", "2026-12-02", "b"),
        ("monday", "2026-12-01", "a"),
        ("monday", "2026-12-01", "a"),
    ):
        certificate["fit"]["date"], certificate["table"]["sha256"] = date, digest
        path = sweeps / folder / f"{date}{len(list(sweeps.rglob('*.json')))}.certificate.json"
        path.write_text(json.dumps(certificate))
    fits, faults = read_fits(sweeps / "monday", [])
    assert [fit.date for fit in fits] == ["2026-12-01", "2026-12-02"]
    assert not faults


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"schema": 9, "standings": []}',
        '{"schema": 1}',
        '{"schema": 1, "standings": [{"sweep": "monday"}]}',
        '{"schema": 1, "standings": [{"sweep": "monday", "date": "2026-12-01", "table": "t", '
        '"digest": "d", "calls": 1, "covered": 1, "worst_percent": "many"}]}',
    ],
)
def test_a_file_that_is_no_standing_is_said(sweeps: Path, text: str) -> None:
    """Reference: house rule 7; the other sweep's standing is still told."""
    (sweeps / "monday" / "coefficients.json").write_text(text)
    found, faults = read_history(sweeps / "tuesday")
    assert [one.sweep for one in found] == ["tuesday"]
    assert len(faults) == 1
    assert faults[0].startswith("monday/coefficients.json: ")


def test_a_certificate_of_another_shape_is_said(sweeps: Path) -> None:
    """Reference: house rule 7."""
    (sweeps / "monday" / "odd.certificate.json").write_text('{"coefficients": [{}]}')
    fits, (fault,) = read_fits(sweeps / "monday", [])
    assert not fits
    assert fault.startswith("odd.certificate.json: ")
    assert "odd.certificate.json" in page_of(sweeps / "monday")


def a_fit(date: str, digest: str, **copies: float) -> Fit:
    return Fit(
        table="nightly",
        date=date,
        digest=digest,
        measured=90,
        measured_peaks=80,
        covered=76,
        coverage_interval=(0.877, 0.986),
        held_out_percent=None,
        copies={name: (value, value - 0.1, value + 0.1, "data") for name, value in copies.items()},
    )


def test_trends_are_of_what_two_fits_have() -> None:
    """Reference: by hand; one coefficient is in all fits, one in two, one in one alone."""
    fits = [
        a_fit("2026-12-01", "aaaaaaaa", stream=2.0, scores=1.0),
        a_fit("2026-12-02", "bbbbbbbb", stream=2.5),
        a_fit("2026-12-02", "cccccccc", stream=2.25, scores=1.0, core=4.0),
    ]
    drawn = trends(fits, [])
    stream = [row for row in drawn["fits"] if row["coefficient"] == "stream"]
    assert [(row["order"], row["moved"]) for row in stream] == [(0, 0), (1, 0.5), (2, 0.25)]
    assert (stream[1]["low"], stream[1]["high"]) == pytest.approx((0.4, 0.6))
    assert {row["coefficient"] for row in drawn["fits"]} == {"stream", "scores"}
    assert [row["fit"] for row in drawn["coverage"]] == [
        "nightly 2026-12-01",
        "nightly 2026-12-02 bbbbbb",
        "nightly 2026-12-02 cccccc",
    ]
    assert {row["coverage"] for row in drawn["coverage"]} == {95.0}
    assert trends(fits[:1], []) == {"fits": [], "coverage": [], "sweeps": []}


def test_those_that_moved_most_are_drawn() -> None:
    """Reference: by hand; the twelve move by 0.1 to 1.2, up and down in turn."""
    moves = {f"c{place}": (place + 1) / 10 * (-1) ** place for place in range(12)}
    fits = [
        a_fit("2026-12-01", "a", **dict.fromkeys(moves, 3.0)),
        a_fit("2026-12-02", "b", **{name: 3 + by for name, by in moves.items()}),
    ]
    drawn = [row["coefficient"] for row in trends(fits, [])["fits"]]
    assert drawn[::2] == drawn[1::2] == [f"c{place}" for place in range(11, 3, -1)]


def test_errors_are_of_tables_that_priced_two_sweeps(sweeps: Path) -> None:
    """Reference: the pages' own standings; the stub's calls are 1 % under, all within the bound."""
    history, _ = read_history(sweeps / "tuesday")
    rows_ = trends([], history)["sweeps"]
    assert [(row["table"], row["order"]) for row in rows_] == [
        ("megatron-local", 0),
        ("megatron-local", 1),
    ]
    assert all(row["worst"] == pytest.approx(1, abs=1e-6) and row["all_within"] for row in rows_)
    assert trends([], history[:1])["sweeps"] == []


def test_the_page_carries_its_trends(sweeps: Path) -> None:
    """Reference: `trends` of what was read here; the shipped certificate under two digests."""
    certificate = json.loads(CERTIFICATE.read_text())
    for day in ("2026-12-01", "2026-12-02"):
        certificate["fit"]["date"] = certificate["table"]["sha256"] = day
        (sweeps / "monday" / f"{day}.certificate.json").write_text(json.dumps(certificate))
    page = page_of(sweeps / "tuesday")
    own = Path(str(CERTIFICATE).replace("nonfull-h200.certificate.json", "megatron-local.toml"))
    fits, _ = read_fits(sweeps / "tuesday", [own])
    history, _ = read_history(sweeps / "tuesday")
    assert contents_of(page)["trends"] == json.loads(json.dumps(trends(fits, history)))
    assert len(contents_of(page)["trends"]["fits"]) == 2 * MOST_LINES
    for name in ("fits", "coverage", "sweeps"):
        assert f'id="chart-{name}"' in page


def test_standings_read_back_as_written(tmp_path: Path) -> None:
    """Reference: the round trip."""
    found = standings(read_store(GOLDEN))
    (tmp_path / "one").mkdir()
    write_standings(found, tmp_path / "one")
    assert read_history(tmp_path / "one") == (found, [])
