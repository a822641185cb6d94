"""The report in a real browser: it draws itself, and clicks change what it shows.

The fixture `page` holds every test to no request but the file itself and an empty console.
"""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from pipeline.report.contents import unpack
from tests.browser.chromium import DRAWN, PATIENCE_MS, Heard, open_page

pytestmark = pytest.mark.needs("browser")
expect.set_options(timeout=PATIENCE_MS)

CALL_CHARTS = ("stack", "waterfall", "timeline")
SWEEP_CHARTS = ("scatter", "errors", "residuals", "growth", "held", "temperature", "weights")
TRENDS = ("fits", "coverage", "sweeps")


def click(page: Page, name: str, value: str) -> None:
    page.click(f'button[data-filter="{name}"][data-value="{value}"]')
    page.wait_for_function(DRAWN)


def points(page: Page, chart: str) -> int:
    """Count a chart's marks that stand for calls."""
    return page.locator(f"#chart-{chart} .mark-symbol.role-mark path").count()


def labels(page: Page) -> list[str]:
    return page.locator("#cells tbody td:first-child").all_inner_texts()


def contents_of(report: Path) -> dict:
    found = re.search(r'id="contents">(.*?)</script>', report.read_text())
    assert found is not None
    return unpack(found[1])


def ended(held: dict) -> list[int]:
    """The places of the calls that ran to their end: of the others a chart has no point."""
    return [place for place, size in enumerate(held["calls"]["observed"]) if size is not None]


def test_every_section_with_something_to_show_is_drawn(page: Page) -> None:
    """Reference: the page's list of contents; a drawn chart is an svg with marks in it."""
    assert page.evaluate("document.body.dataset.drawn") == "yes"
    for name in (*CALL_CHARTS, *SWEEP_CHARTS, *TRENDS):
        expect(page.locator(f"#section-{name}")).to_be_visible()
        assert page.locator(f"#chart-{name} svg .role-mark path").count() > 0, name
        drawn, place = (page.locator(f"#chart-{name}{of}").bounding_box() for of in (" svg", ""))
        assert drawn is not None
        assert place is not None
        assert drawn["width"] == pytest.approx(place["width"], abs=8), name
    for name in ("garbage", "savings"):  # none in these records
        expect(page.locator(f"#section-{name}")).to_be_hidden()


def test_each_fit_and_sweep_is_a_point_of_its_trend(page: Page, report: Path) -> None:
    """Reference: the page's own rows; three certificates, of which two were moved, two sweeps."""
    trends = contents_of(report)["trends"]
    for name, count in (("fits", 24), ("coverage", 3), ("sweeps", 2)):
        assert points(page, name) == len(trends[name]) == count
    moved = [row for row in trends["fits"] if row["moved"]]
    assert [row["moved"] for row in moved] == [0.5]
    red = page.locator('#chart-sweeps .mark-symbol.role-mark path[fill="#e03131"]')
    assert red.count() == 1, "the sweep of which one call was above its bound"
    click(page, "topology", "ep2_cp2")
    assert points(page, "sweeps") == 2, "what is of no call is not filtered"
    click(page, "topology", "ep2_cp2")


def test_a_click_on_a_filter_changes_table_figures_and_charts(page: Page, report: Path) -> None:
    """Reference: the page's columns, counted here; a second click restores what was."""
    held = contents_of(report)
    topologies = [held["cells"]["topology"][cell] for cell in held["calls"]["cell"]]
    seen = [topologies[place] for place in ended(held)]
    everything = labels(page)
    click(page, "topology", "ep2_cp2")
    assert labels(page)
    assert all(label.startswith("ep2_cp2") for label in labels(page))
    count = topologies.count("ep2_cp2")
    expect(page.locator("#shown")).to_contain_text(f"{count} of {len(topologies)} recorded calls")
    assert points(page, "scatter") == points(page, "errors") == seen.count("ep2_cp2")
    click(page, "topology", "ep2_cp2")
    assert labels(page) == everything
    assert points(page, "scatter") == len(seen) == len(topologies) - 2


def test_each_filter_keeps_what_it_says(page: Page, report: Path) -> None:
    """Reference: the page's columns, counted here; a filter of one value is not offered."""
    held = contents_of(report)
    calls, cells = held["calls"], held["cells"]
    for name in ("weights", "temperature", "outcome", "model"):
        facts = calls[name] if name == "temperature" else [cells[name][c] for c in calls["cell"]]
        offered = page.locator(f'button[data-filter="{name}"]')
        assert offered.count() == (len(set(facts)) if len(set(facts)) > 1 else 0)
        if offered.count():
            value = facts[-1]
            click(page, name, value)
            pressed = page.locator(f'button[data-filter="{name}"][aria-pressed="true"]')
            assert pressed.all_inner_texts() == [value]
            assert points(page, "scatter") == [facts[p] for p in ended(held)].count(value)
            click(page, name, value)


def test_two_filters_hold_together_and_two_values_of_one_add_up(page: Page, report: Path) -> None:
    """Reference: the page's columns, counted here."""
    held = contents_of(report)
    calls, cells = held["calls"], held["cells"]
    facts = [
        (cells["topology"][cell], temperature)
        for cell, temperature in zip(calls["cell"], calls["temperature"], strict=True)
    ]
    facts = [facts[place] for place in ended(held)]
    for name, value in (
        ("topology", "ep1_cp1"),
        ("topology", "ep4_cp2"),
        ("temperature", "warm"),
    ):
        click(page, name, value)
    wanted = facts.count(("ep1_cp1", "warm")) + facts.count(("ep4_cp2", "warm"))
    assert points(page, "scatter") == wanted > 0


def test_a_click_on_a_row_shows_that_call(page: Page, report: Path) -> None:
    """Reference: the page's columns; terms of the peak and their sum."""
    held = contents_of(report)
    row = page.locator("#cells tbody tr").nth(7)
    place = int(row.get_attribute("data-call") or -1)
    row.locator("button").click()
    page.wait_for_function(DRAWN)
    expect(row).to_have_class(re.compile("chosen"))
    assert page.locator("#call").input_value() == str(place)
    terms, unit = held["terms"], held["unit"]["bytes"]
    planned = {n: column[place] for n, column in zip(terms["names"], terms["planned"], strict=True)}
    shown = dict(line.split("\t")[:2] for line in page.locator("#terms tbody tr").all_inner_texts())
    assert float(shown["in all"]) == pytest.approx(sum(planned.values()) / unit, abs=0.006)
    for name, size in planned.items():
        if size >= unit / 100:  # less is shown in a smaller unit
            assert float(shown[name]) == pytest.approx(size / unit, abs=0.006)


def test_the_timeline_marks_its_peak(page: Page) -> None:
    """Reference: the moment at which the records were written with their fullest point."""
    page.locator("#cell").select_option(index=3)
    page.wait_for_function(DRAWN)
    expect(page.locator("#chart-timeline svg")).to_contain_text(
        "peak: recompute decoder.layers.0.mlp.experts.fc1"
    )


def names_of(page: Page, chart: str) -> list[str]:
    """The names along a chart's upright axis, from the top."""
    return page.evaluate(
        """(chart) => {
          const axis = document.querySelectorAll(`#chart-${chart} .role-axis-label`);
          const texts = [...[...axis].at(-1).querySelectorAll("text")];
          const top = (text) => text.getBoundingClientRect().top;
          return texts.sort((one, other) => top(one) - top(other)).map((text) => text.textContent);
        }""",
        chart,
    )


def test_what_a_click_brings_back_stands_where_it_stood(page: Page) -> None:
    """Reference: the order before; a waterfall leads from expected to observed in any call."""
    before = names_of(page, "errors")
    assert len(set(before)) > 6
    for value in ("ep4_cp2", "ep1_cp1", "ep4_cp2", "ep1_cp1"):
        click(page, "topology", value)
    assert names_of(page, "errors") == before
    for cell in (2, 5, 1):
        page.locator("#cell").select_option(index=cell)
        page.wait_for_function(DRAWN)
        steps = names_of(page, "waterfall")
        assert (steps[0], steps[-1]) == ("expected", "observed")


def test_words_of_records_are_only_ever_words(page: Page, report: Path) -> None:
    """Reference: HTML's own rule; a handler or script that ran would have left `window.hacked`."""
    cells = contents_of(report)["cells"]
    page.locator("#cell").select_option(value=str(cells["outcome"].index("failed")))
    page.wait_for_function(DRAWN)
    expect(page.locator("#troubles")).to_contain_text("<img src=x onerror=")
    expect(page.locator("#leftovers")).to_contain_text("<img src=x onerror=")
    figures = page.locator("#device tbody tr").all_inner_texts()
    assert "reserved peak\t3.00 MiB" in figures
    assert len(figures) == 2
    page.locator("#chart-stack .role-mark path").last.hover()
    page.locator("#chart-timeline .role-mark path").first.hover(force=True)
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0


def test_a_call_that_was_cut_short_is_no_measurement(page: Page, report: Path) -> None:
    """Reference: the page's columns; its timeline is drawn, a step to its peak is not."""
    held = contents_of(report)
    place = next(p for p, size in enumerate(held["calls"]["reached"]) if size is not None)
    assert place not in ended(held)
    page.locator("#cell").select_option(value=str(held["calls"]["cell"][place]))
    page.locator("#call").select_option(value=str(place))
    page.wait_for_function(DRAWN)
    expect(page.locator("#facts")).to_contain_text("observed cut short at ")
    expect(page.locator("#facts")).to_contain_text("its peak is not known")
    expect(page.locator("#section-timeline")).to_be_visible()
    expect(page.locator("#section-waterfall")).to_be_hidden()
    expect(page.locator("#cells")).to_contain_text("cold, 1 failed")
    expect(page.locator("#troubles")).to_contain_text("was cut short at")


def test_no_window_is_too_narrow_and_no_text_too_faint(page: Page) -> None:
    """Reference: a page wider than its window has to be pushed about; WCAG 2's contrast, AAA."""
    for scheme in ("light", "dark"):
        for width in (360, 1160):
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 800})
            page.wait_for_function(DRAWN)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        text, card = page.evaluate(
            "['color', 'backgroundColor'].map((name) => "
            "getComputedStyle(document.querySelector('section'))[name])"
        )
        assert contrast(text, card) >= 7


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours, as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_a_damaged_page_says_so(browser: Browser, report: Path, tmp_path: Path) -> None:
    """Reference: a file cut short in its data, as a copy may be."""
    text = report.read_text()
    start = text.index('id="contents">') + 2000
    damaged = tmp_path / "damaged.html"
    damaged.write_text(text[:start] + text[text.index("</script>", start) :])
    page = browser.new_page()
    open_page(page, damaged)
    expect(page.locator("#broken")).to_contain_text("The page could not be drawn")
    page.close()


def test_a_report_of_ten_thousand_records_opens_and_filters(
    browser: Browser, large_report: Path
) -> None:
    """Reference: the page's columns; the size that mail and review systems take is 6 MB."""
    assert large_report.stat().st_size < 6_000_000
    page = browser.new_page()
    heard = Heard.on(page)
    open_page(page, large_report)
    held = contents_of(large_report)
    assert len(held["calls"]["cell"]) >= 10_000
    assert page.evaluate("document.body.dataset.drawn") == "yes"
    assert page.locator("#cells tbody tr").count() == 200
    click(page, "topology", "ep1_cp2")
    topologies = [held["cells"]["topology"][cell] for cell in held["calls"]["cell"]]
    expect(page.locator("#shown")).to_contain_text(f"{topologies.count('ep1_cp2')} of ")
    unkept = next(p for p in range(len(topologies)) if str(p) not in held["details"]["calls"])
    page.locator("#cell").select_option(value=str(held["calls"]["cell"][unkept]))
    page.locator("#call").select_option(value=str(unkept))
    page.wait_for_function(DRAWN)
    expect(page.locator("#kept")).to_contain_text(f"1000 of {len(topologies)} calls, not of this")
    expect(page.locator("#section-timeline")).to_be_hidden()
    page.click("#more")
    assert page.locator("#cells tbody tr").count() == 2 * held["cells"]["topology"].count("ep1_cp2")
    assert heard.complaints == []
    page.close()
