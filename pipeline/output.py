"""Files that a command is told to write: whether they can be is asked before the work is done."""

import os
from pathlib import Path

from planner.errors import ConfigError


def require_writable(path: Path, ending: str = "") -> None:
    """Check that a file can be written at ``path``; folders on the way to it may be missing.

    Raises
    ------
    ConfigError
        Where it is a folder, does not end as it has to, or its folder takes no files.
    """
    if ending and path.suffix != ending:
        raise ConfigError(f"cannot write {path}: its name must end in {ending}")
    if path.is_dir():
        raise ConfigError(f"cannot write {path}: it is a folder; name a file in it")
    above = next(one for one in path.absolute().parents if one.exists())
    if not above.is_dir():
        raise ConfigError(f"cannot write {path}: {above} is no folder")
    if not os.access(path if path.exists() else above, os.W_OK):
        raise ConfigError(f"cannot write {path}: no permission")


def write(path: Path, text: str) -> None:
    """Write a file, and the folders on the way to it that are missing.

    Raises
    ------
    ConfigError
        Where the system refuses it, with its reason.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
