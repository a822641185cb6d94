"""A thread that reads a figure again and again, and keeps the highest."""

import threading
from collections.abc import Callable
from types import TracebackType

INTERVAL_S = 0.002
"""Seconds between two readings: a layer of a full-size call takes some milliseconds."""


class Sampler:
    """Reads figures side by side while its block runs; of each the highest is kept.

    Parameters
    ----------
    read
        Returns the figures of one moment, always as many. It runs on the sampler's own thread.

    Attributes
    ----------
    highest
        Of each figure; the first reading is made before the block begins, the last after it ends.
    readings
        How often they were read.
    """

    def __init__(self, read: Callable[[], tuple[int, ...]], interval: float = INTERVAL_S) -> None:
        self._read, self._interval = read, interval
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self.highest: tuple[int, ...] = ()
        self.readings = 0

    def __enter__(self) -> "Sampler":
        self._take()
        self._thread = threading.Thread(target=self._run, name="memory sampler", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop; raises what reading raised, unless the block itself did."""
        assert self._thread is not None
        self._over.set()
        self._thread.join()
        if error is not None:
            return
        if self._error is not None:
            raise self._error
        self._take()

    def _run(self) -> None:
        try:
            while not self._over.wait(self._interval):
                self._take()
        except Exception as error:  # raised by the thread that waits for us
            self._error = error

    def _take(self) -> None:
        figures = self._read()
        highest = self.highest or figures
        self.highest = tuple(max(pair) for pair in zip(highest, figures, strict=True))
        self.readings += 1
