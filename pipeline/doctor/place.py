"""Where results lie: the file system, the room on it, and the host's memory."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from pipeline.doctor.finding import EVERY_SWEEP, Finding, absent, broken, here

LEAST_FREE = 2 * 2**30
LEAST_MEMORY = 4 * 2**30
SEVERAL_HOSTS = "launcher=slurm on several nodes"
SHARED = (
    *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "cifs", "smb3", "9p"),
    *("virtiofs", "afs", "panfs", "pvfs2", "wekafs", "fuse.juicefs", "fuse.sshfs", "glusterfs"),
    *("fuse.glusterfs", "ocfs2", "gfs2"),
)
"""Kinds of file system that hosts share, as /proc/mounts names them."""


def place(out: Path) -> Iterator[Finding]:
    """Look at the folder where results go, or at the one that it would be made in."""
    folder = out.expanduser().absolute()
    while not folder.exists():
        folder = folder.parent
    trouble = _try(folder)
    fix = "choose another folder: out=FOLDER"
    if trouble:
        yield broken("results", f"{folder}: {trouble}", EVERY_SWEEP, fix)
    else:
        yield here("results", f"{folder}: files, links and locks work", EVERY_SWEEP)
    kind = kind_of(folder)
    if kind in SHARED:
        yield here("shared", f"{folder} is on {kind}", SEVERAL_HOSTS)
    else:
        what = f"{folder} is on {kind}, which this host has for itself"
        yield absent("shared", what, SEVERAL_HOSTS, "out=FOLDER on what the nodes share")
    free = shutil.disk_usage(folder).free
    yield _enough("space", free, LEAST_FREE, f"free on {folder}", fix)
    memory = psutil.virtual_memory().available
    few = "close what else runs, or lower launcher.max_ranks"
    yield _enough("memory", memory, LEAST_MEMORY, f"of the host, {os.cpu_count()} cores", few)


def _enough(name: str, size: int, least: int, what: str, fix: str) -> Finding:
    found = f"{size / 2**30:.1f} GiB {what}"
    if size >= least:
        return here(name, found, EVERY_SWEEP)
    return broken(name, f"{found}; {least / 2**30:g} are needed", EVERY_SWEEP, fix)


def _try(folder: Path) -> str:
    """Do in ``folder`` what a sweep and a schedule do; return what does not work."""
    try:
        with tempfile.TemporaryDirectory(prefix=".peakcast-doctor-", dir=folder) as made:
            first, second = Path(made, "first"), Path(made, "second")
            with first.open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.link(first, second)
            second.replace(first)
    except OSError as error:
        return f"{error.strerror}"
    return ""


def kind_of(folder: Path, mounts: str | None = None) -> str:
    """Return the kind of file system that holds ``folder``, by the lines of /proc/mounts."""
    lines = Path("/proc/mounts").read_text(encoding="utf-8") if mounts is None else mounts
    best, kind = -1, "an unknown file system"
    for line in lines.splitlines():
        _, point, this, *_ = line.split()
        at = Path(point.encode().decode("unicode_escape"))  # a blank is written \040
        if folder.is_relative_to(at) and len(at.parts) >= best:
            best, kind = len(at.parts), this
    return kind
