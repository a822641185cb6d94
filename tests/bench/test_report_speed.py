"""What a large report costs: to build, to keep and to open."""

import sys
import time
from pathlib import Path

import pytest

from pipeline.report.page import write_page
from pipeline.store import read_store
from tests.browser.chromium import chromium, find_chromium, open_page
from tests.pipeline.many_records import write_many

MOST_BYTES = 6_000_000
ABOUT_LINEAR = 15  # for ten times the records


def build(out: Path, records: int) -> tuple[int, float]:
    """Return how many records were written, and seconds of CPU from records to page."""
    written = write_many(out, records)
    start = time.process_time()
    write_page(read_store(out), out / "report.html")
    return written, time.process_time() - start


@pytest.mark.bench
def test_a_report_of_ten_thousand_records(tmp_path: Path) -> None:
    """Reference: ten times the records may cost about ten times the time; the size that is stated.

    Seconds are shown, not held: to build, aim 10; to open in a browser until all is drawn, aim 3.
    """
    build(tmp_path / "first", 10)  # imports, and the scripts of the charts
    _, few = build(tmp_path / "few", 1_000)
    written, many = build(tmp_path / "many", 10_000)
    page = tmp_path / "many" / "report.html"
    size = page.stat().st_size
    sys.stdout.write(
        f"\nreport of {written} records: {many:.1f} s of CPU (of 1,000: {few:.2f} s), "
        f"{size / 1e6:.1f} MB\n"
    )
    path = find_chromium()
    if path is not None:
        with chromium(path) as browser:
            opened = browser.new_page()
            open_page(opened, page)
            seconds = opened.evaluate("performance.now()") / 1000
        sys.stdout.write(f"opened and drawn in {seconds:.1f} s\n")
    assert size < MOST_BYTES
    assert many / few < ABOUT_LINEAR
