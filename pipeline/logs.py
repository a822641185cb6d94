"""The logs of a cell's ranks, found from their records, and read whatever they hold."""

import os
from pathlib import Path

from jobs.logs import log_path
from jobs.record import RankRecord

TAIL_BYTES = 8192


def log_of(out: Path, record: RankRecord) -> Path | None:
    """Return the log of the rank that made ``record``; ``None`` where there is none.

    A rank started by hand writes to its terminal, and a rank that never started left nothing.
    """
    path = log_path(out, record.key, record.attempt, record.rank)
    return path if path.is_file() else None


def tail_of(path: Path, at_most: int = TAIL_BYTES) -> str:
    """Return the last lines of a log, ``at_most`` bytes of them.

    Read as UTF-8; bytes that are none, which a library or a torn write may leave, are replaced.

    Raises
    ------
    OSError
        When the file cannot be read.
    """
    with path.open("rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(0, size - at_most))
        text = log.read().decode("utf-8", errors="replace")
    if size <= at_most:
        return text
    return text.partition("\n")[2] or text  # the first line has lost its beginning
