"""Files for the owner alone: specs, job folders, and pickles, which run code when they are read."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class NotOwnError(PermissionError):
    """A folder whose pickles must not be read: somebody else could have put them there."""


def require_own(folder: Path) -> None:
    """Check that nobody but this user can put files into ``folder``.

    Raises
    ------
    NotOwnError
        When it is another user's, or its group or others may write to it; with the way out.
    """
    state = folder.stat()
    if state.st_uid != os.getuid():
        raise NotOwnError(
            f"{folder} belongs to user {state.st_uid}, not to {os.getuid()}: its pickles are not "
            "read, since reading one runs code; records can be read from anywhere"
        )
    if state.st_mode & OTHERS_WRITE:
        raise NotOwnError(
            f"{folder} has mode {stat.S_IMODE(state.st_mode):04o}: others could have put pickles "
            f"there, and reading one runs code; chmod 700 {folder} if you know what is in it"
        )


@contextmanager
def owner_only() -> Iterator[None]:
    """Create files as 0600 and folders as 0700 within the block."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
