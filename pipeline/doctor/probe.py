"""Ask another program, with a limit: whatever it does, an answer comes back."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

IMPORT_LIMIT_S = 30.0  # of torch from a cold network file system
TOOL_LIMIT_S = 5.0
SAID_AT_MOST = 200
SECRET = re.compile("KEY|TOKEN|SECRET|PASS|CREDENTIAL", re.IGNORECASE)  # in a variable's name
SECRET_AT_LEAST = 6  # characters; a flag of one or two is no secret


@dataclass(frozen=True, slots=True)
class Answer:
    """How a program answered.

    Parameters
    ----------
    output
        What it printed, when it succeeded; else ``None``.
    trouble
        What went wrong, in a line; empty when nothing did.
    """

    output: str | None
    trouble: str = ""


def ask(command: Sequence[str], limit_s: float = TOOL_LIMIT_S) -> Answer | None:
    """Run a program to its end; ``None`` where there is no such program.

    It and its children are killed at the limit. Of an error the last line is kept.
    """
    program = shutil.which(command[0])
    if program is None:
        return None
    try:
        process = subprocess.Popen(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return Answer(None, f"{command[0]} cannot be started: {error.strerror}")
    try:
        out, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return Answer(None, f"no answer within {limit_s:g} s")
    if process.returncode:
        return Answer(None, _why(process.returncode, _public(errors)))
    return Answer(_public(out).strip())


def ask_python(program: str, limit_s: float = IMPORT_LIMIT_S) -> tuple[Any, str]:
    """Run a Python program that prints JSON last; return what it told, and what went wrong.

    In a process of its own: an extension that crashes or hangs costs one finding.
    """
    answer = ask([sys.executable, "-c", program], limit_s)
    assert answer is not None, "this Python is there"
    if answer.output is None:
        return None, answer.trouble
    return json.loads(answer.output.splitlines()[-1]), ""


def _public(said: bytes) -> str:
    """Return what a program said, without what the environment holds of secrets."""
    text = said.decode(errors="replace")
    for name, value in os.environ.items():
        if SECRET.search(name) and len(value) >= SECRET_AT_LEAST:
            text = text.replace(value, "(hidden)")
    return text


def _why(code: int, errors: str) -> str:
    last = next((line for line in reversed(errors.splitlines()) if line.strip()), "")
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return last.strip()[:SAID_AT_MOST] or f"it ended with code {code}"
