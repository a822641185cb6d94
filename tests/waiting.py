"""Waiting for what other processes do: patient, for a busy machine is no failure."""

import time
from collections.abc import Callable

import psutil


def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    """Poll a condition; fail if it never holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.1)


def is_alive(pid: int) -> bool:
    """Whether a process runs: where init reaps nothing, a dead orphan stays, as a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
