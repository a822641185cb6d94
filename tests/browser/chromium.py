"""Chromium without a screen and without a network, driven by playwright.

The browser is the distribution's, never one that playwright would download.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
INSTALL = "apt-get install chromium"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = 120_000  # a busy machine is no failure
DRAWN = "['yes', 'broken'].includes(document.body.dataset.drawn)"


def find_chromium() -> str | None:
    """Return the browser's path, or ``None`` where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def chromium(path: str) -> Iterator[Browser]:
    """Start the browser at ``path`` with a fresh profile; it ends with the context."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=FLAGS)
        yield browser
        browser.close()


@dataclass
class Heard:
    """What a page asked of the network, and what it complained of."""

    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @classmethod
    def on(cls, page: Page) -> "Heard":
        """Listen to a page before it is opened."""
        heard = cls()
        page.on("request", lambda request: heard.requests.append(request.url))
        page.on("pageerror", lambda error: heard.complaints.append(str(error)))
        page.on(
            "console",
            lambda said: (
                heard.complaints.append(said.text) if said.type in ("error", "warning") else None
            ),
        )
        return heard


def open_page(page: Page, path: Path) -> None:
    """Open a report and wait until all of it is drawn."""
    page.set_default_timeout(PATIENCE_MS)
    page.goto(path.absolute().as_uri())
    page.wait_for_function(DRAWN)
