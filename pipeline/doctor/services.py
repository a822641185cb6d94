"""What lies outside: W&B's key, and a browser for the tests of the report."""

from pipeline.doctor.finding import Finding, absent, broken, here
from pipeline.doctor.probe import ask, ask_python

ONLINE = "tracker=online"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER_TESTS = "the report's browser tests"

LOGIN = """
import json
from pipeline.track import require_login
from planner.errors import ConfigError
try:
    require_login()
    print(json.dumps("ok"))
except ConfigError as error:
    print(json.dumps("refused" if error.__cause__ else "none"))
"""


def wandb() -> Finding:
    """Ask what an online sweep would ask, in its own process: of the key only whether it does."""
    fix = "run `wandb login`, or set WANDB_API_KEY; tracker=offline needs neither"
    told, trouble = ask_python(LOGIN)
    if trouble:
        return broken("wandb", trouble, ONLINE, fix)
    if told == "ok":
        return here("wandb", "it takes the key that is set", ONLINE)
    if told == "none":
        return absent("wandb", "no key is set", ONLINE, fix)
    what = "a key is set, and W&B does not take it or cannot be reached"
    return broken("wandb", what, ONLINE, f"see the key and the network; {fix}")


def chromium() -> Finding:
    """Look for a browser that runs without a screen."""
    fix = "apt-get install chromium"
    for name in BROWSERS:
        answer = ask([name, "--version"])
        if answer is not None and answer.output is not None:
            return here("chromium", answer.output, BROWSER_TESTS)
        if answer is not None:
            return broken("chromium", f"{name}: {answer.trouble}", BROWSER_TESTS, fix)
    return absent("chromium", f"none of {', '.join(BROWSERS)} on PATH", BROWSER_TESTS, fix)
