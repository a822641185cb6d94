"""Signals that end a driver, heard as exceptions, so that it can put its jobs in order."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """SIGTERM or SIGHUP, named in its text, reached the driver: unwind as for Ctrl-C."""


@contextmanager
def unwinding_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the block as Ctrl-C does, instead of ending us on the spot.

    Python hears signals in its main thread alone; in another, the block runs as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(signum: int, _frame: FrameType | None) -> None:
        raise Interrupted(signal.Signals(signum).name)

    heard = [s for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) != signal.SIG_IGN]
    before = {s: signal.signal(s, interrupt) for s in heard}  # nohup's choice to ignore one stays
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
