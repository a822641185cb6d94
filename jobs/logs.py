"""Where a rank's log lies, and how a rank comes to write it.

The name is that of the rank's records, so that one is found from the other, whichever launcher ran
the rank: ``records/<key>.a<attempt>.r<rank>.jsonl`` has ``logs/<key>.a<attempt>.r<rank>.log``.
Standard library only.
"""

import os
import sys
from io import TextIOWrapper
from pathlib import Path

FOLDER = "logs"


def log_path(out: Path, key: str, attempt: int, rank: int) -> Path:
    """Where the log of a rank lies under ``out``."""
    return out / FOLDER / f"{key}.a{attempt}.r{rank}.log"


def write_log(path: Path) -> None:
    """Send all that this process and its children print from here on to ``path``.

    Both streams, also what libraries in C write to their descriptors; appended, since an attempt
    that is resumed goes on in its log. Python's part is UTF-8, what it cannot encode escaped, and
    each line is on disk before the next, so that a killed rank loses none. The owner alone reads
    it.

    Raises
    ------
    OSError
        When the file cannot be opened.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, TextIOWrapper)
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
