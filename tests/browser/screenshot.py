"""A picture of a report in the browser, from its head to the timeline of one call.

``python -m tests.browser.screenshot outputs/default/report.html docs/report.png "ep4_cp2 random"``
"""

import argparse
import sys
from pathlib import Path

from tests.browser.chromium import DRAWN, INSTALL, chromium, find_chromium, open_page

WIDTH = 1160
MARGIN = 24


def main() -> int:
    """Take the picture; exit code 2 where there is no browser or no such cell."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("report", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("cell", nargs="?", help="label of the cell to show; by default the fullest")
    given = parser.parse_args()
    path = find_chromium()
    if path is None:
        sys.stderr.write(f"no chromium on this machine; as root: {INSTALL}\n")
        return 2
    with chromium(path) as browser:
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme="light")
        open_page(page, given.report)
        if given.cell:
            if given.cell not in page.locator("#cell option").all_inner_texts():
                sys.stderr.write(f"{given.report} has no cell {given.cell!r}\n")
                return 2
            page.locator("#cell").select_option(label=given.cell)
            page.wait_for_function(DRAWN)
        last = page.locator("#chart-timeline:visible, #chart-waterfall:visible").last
        box = last.bounding_box()
        height = box["y"] + box["height"] + MARGIN if box else 900
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": height}
        page.screenshot(path=given.picture, full_page=True, clip=clip)
    return 0


if __name__ == "__main__":
    sys.exit(main())
