"""A browser, and reports to open in it."""

import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from jobs.record import RankRecord, read_records, write_records
from pipeline.report.history import Standing, write_standings
from pipeline.report.page import write_page
from pipeline.store import read_store
from tests.browser.chromium import INSTALL, Heard, chromium, find_chromium, open_page
from tests.pipeline.many_records import write_many

HOSTILE = "<img src=x onerror='window.hacked=1'></script><script>window.hacked=2</script>"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = find_chromium()
    if path is None:
        pytest.skip(f"no chromium on this machine; as root: {INSTALL}")
    with chromium(path) as started:
        yield started


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Report of a few cells; one has failed, with words in its records that a page must not run."""
    out = tmp_path_factory.mktemp("report") / HOSTILE.replace("/", "|")
    write_many(out, 60)
    first = sorted((out / "records").iterdir())[0]
    write_records(first, [_hostile(record) for record in read_records(first)[0]])
    _write_past(out.parent / "earlier")
    write_page(read_store(out), out / "report.html")
    return out / "report.html"


def _write_past(folder: Path) -> None:
    """Leave what a page tells of the past: two fits, and a sweep that the same table priced."""
    folder.mkdir()
    shipped = resources.files("planner.tables") / "megatron-local.certificate.json"
    certificate = json.loads(shipped.read_text(encoding="utf-8"))
    for number, moved in enumerate((0.0, 0.5)):
        certificate["fit"]["date"] = f"2026-12-0{number + 1}"
        certificate["table"] = {"name": HOSTILE, "sha256": str(number)}
        certificate["coefficients"][0]["copies"] += moved
        text = json.dumps(certificate)
        (folder / f"{number}.certificate.json").write_text(text, encoding="utf-8")
    standing = Standing(
        sweep="earlier",
        date="2026-12-01",
        table="megatron-local",
        digest="0",
        calls=3,
        covered=2,
        worst_percent=12.0,
    )
    write_standings([standing], folder)


def _hostile(record: RankRecord) -> RankRecord:
    assert record.planned is not None
    assert record.observed is not None
    record.outcome, record.error = "error", HOSTILE
    record.planned.terms[HOSTILE] = record.observed.terms[HOSTILE] = 2**20
    record.observed.timeline = [(size, f"{HOSTILE} {w}") for size, w in record.observed.timeline]
    record.observed.unattributed = [
        {"bytes": 2**20, "shape": HOSTILE, "module": HOSTILE, "op": HOSTILE}
    ]
    record.observed.device = {"reserved_peak_bytes": 3 * 2**20, "ooms": 0, HOSTILE: HOSTILE}
    record.environment = {HOSTILE: HOSTILE}
    return record


@pytest.fixture(scope="session")
def large_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Report of 10,000 records."""
    out = tmp_path_factory.mktemp("large") / "many"
    write_many(out, 10_000)
    write_page(read_store(out), out / "report.html")
    return out / "report.html"


@pytest.fixture
def page(browser: Browser, report: Path) -> Iterator[Page]:
    """The report, opened; whatever a test does, the page asks for nothing and complains of nothing.

    Reference of that law: the browser's own lists of requests and of console messages.
    """
    context = browser.new_context(offline=True, viewport={"width": 1160, "height": 900})
    opened = context.new_page()
    heard = Heard.on(opened)
    open_page(opened, report)
    yield opened
    assert heard.complaints == []
    assert [url for url in heard.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert len([url for url in heard.requests if url.startswith("file:")]) == 1
    context.close()
