"""A lease on a schedule's folder: one holder on any host, and a dead holder's lease taken over.

The file says who holds it: owner, host, process and since when; the holder touches it every
`BEAT_S`. A lease is *stale* when

- it was taken on this host and that very process is gone (its start time tells it from a later
  process with the same number), or
- it was taken on another host, or in another boot or container of this one, and was not touched
  for `STALE_S` by the clock of the file system, so that the hosts' clocks do not matter.

A stale lease is taken over by replacing the file; the one whose name the file holds afterwards has
it. A holder that finds another's name in it (it slept longer than `STALE_S`) is told to stop.
"""

import fcntl
import getpass
import json
import os
import platform
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from planner.errors import ConfigError

BEAT_S = 60.0
STALE_S = 15 * 60.0
SETTLE_S = 0.2  # between replacing a stale lease and reading whose name it holds


class LeaseError(ConfigError):
    """A lease that cannot be read or written."""


class LeaseHeldError(RuntimeError):
    """Another process holds the lease."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """Who holds a lease.

    Parameters
    ----------
    token
        Random; tells two leases of one process apart.
    place
        The host's boot and the process's container: process numbers mean nothing outside them.
    process_started, since
        Seconds of the epoch: when the process began, and when it took the lease.
    """

    owner: str
    host: str
    place: str
    pid: int
    process_started: float
    since: float
    token: str

    @classmethod
    def here(cls) -> "Holder":
        """Return this process."""
        return cls(
            owner=getpass.getuser(),
            host=platform.node(),
            place=_place(),
            pid=os.getpid(),
            process_started=psutil.Process().create_time(),
            since=time.time(),
            token=secrets.token_hex(8),
        )

    def is_stale(self, untouched_s: float) -> bool:
        """Whether its holder is gone, by the rule above."""
        if (self.host, self.place) != (platform.node(), _place()):
            return untouched_s > STALE_S
        try:
            process = psutil.Process(self.pid)
            gone = process.status() == psutil.STATUS_ZOMBIE
            return bool(gone or process.create_time() != self.process_started)
        except psutil.NoSuchProcess:
            return True

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"{self.owner} on {self.host}, process {self.pid}, since {since}"


@contextmanager
def hold(path: Path, lost: Callable[[], None], say: Callable[[str], None]) -> Iterator[Holder]:
    """Hold the lease at ``path`` for the block.

    Parameters
    ----------
    lost
        Called from another thread when the lease was taken over.
    say
        Told of a stale lease that was taken over.

    Raises
    ------
    LeaseHeldError
        When another process holds it; names owner, host, process and age.
    LeaseError
        When the file cannot be read or written.
    """
    holder = Holder.here()
    try:
        _take(path, holder, say)
    except OSError as error:
        raise LeaseError(f"cannot take the lease {path}: {error.strerror}") from error
    over = threading.Event()
    beat = threading.Thread(target=_beat, args=(path, holder, over, lost), daemon=True)
    beat.start()
    try:
        yield holder
    finally:
        over.set()
        beat.join()
        if _read(path) == holder:
            path.unlink()


def _take(path: Path, holder: Holder, say: Callable[[str], None]) -> None:
    """Put ``holder`` into the file, if nobody live is in it."""
    scratch = path.with_name(f"{path.name}.{holder.token}")
    with path.with_name(f"{path.name}.guard").open("a") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)  # here one at a time; between hosts the names decide
        try:
            scratch.write_text(json.dumps(asdict(holder)), encoding="utf-8")
            try:
                os.link(scratch, path)  # made whole or not at all, on a network file system too
                return
            except FileExistsError:
                _require_stale(path, _now_there(scratch), say)
            scratch.replace(path)
            time.sleep(SETTLE_S)
            if (now := _read(path)) != holder:
                raise LeaseHeldError(f"{path} was taken over by {now} at the same moment")
        finally:
            scratch.unlink(missing_ok=True)


def _require_stale(path: Path, now: float, say: Callable[[str], None]) -> None:
    """Check that the lease's holder is gone."""
    there = _read(path)
    if there is None:
        return  # let go of between two looks
    untouched = now - path.stat().st_mtime
    age = f"{max(0.0, now - there.since):.0f} s old, touched {max(0.0, untouched):.0f} s ago"
    if not there.is_stale(untouched):
        raise LeaseHeldError(f"{path} is held by {there} ({age}); wait for it to end, or stop it")
    say(f"took over the lease of {there} ({age}): that process is gone")


def _read(path: Path) -> Holder | None:
    """Return who holds a lease; ``None`` where nobody does.

    Raises
    ------
    LeaseError
        When the file is no lease.
    """
    try:
        holder = Holder(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise LeaseError(
            f"{path} is no lease ({error}); see that nothing runs there, and remove it"
        ) from error
    return holder


def _now_there(fresh: Path) -> float:
    """Return the time by the clock of the file system that holds ``fresh``."""
    os.utime(fresh)
    return fresh.stat().st_mtime


def _beat(path: Path, holder: Holder, over: threading.Event, lost: Callable[[], None]) -> None:
    while not over.wait(BEAT_S):
        try:
            if _read(path) != holder:
                lost()
                return
            os.utime(path)
        except (OSError, LeaseError):
            continue  # a file system that is away costs a beat; after `STALE_S` it costs the lease


def _place() -> str:
    """Return the identity of the kernel's boot and of our namespace of processes."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
