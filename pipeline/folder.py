"""The results folder of a sweep: writable, and held by one sweep at a time."""

import fcntl
import os
from pathlib import Path
from typing import IO

from planner.errors import ConfigError

PARTS = {"specs": 0o700, "records": 0o777, "jobs": 0o700}
"""Folders of a sweep and what they are made with: who may read records is the user's choice."""


def claim(out: Path) -> IO[str]:
    """Make ``out`` and its parts and hold it until the returned file is closed or we die.

    Raises
    ------
    ConfigError
        When the folder cannot be written to, or another sweep holds it; names that one's pid.
    """
    if "%" in str(out.absolute()):
        raise ConfigError(f"out = {out} holds a %, which submitit reads as a job number; rename it")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for part, mode in PARTS.items():
            (out / part).mkdir(mode=mode, exist_ok=True)
            if not os.access(out / part, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied", str(out / part))
        lock = (out / ".lock").open("a+")
    except OSError as error:
        raise ConfigError(
            f"cannot write results to out = {out}: {error.strerror} ({error.filename}); "
            "choose another folder with out=FOLDER"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise ConfigError(
            f"out = {out} is in use by another sweep (process {holder}); wait for it to end, or "
            "choose another folder with out=FOLDER"
        ) from error
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock
