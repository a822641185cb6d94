"""The bytes of a file as a reader of opcodes wants them: a window that moves on."""

from typing import BinaryIO

CHUNK = 1 << 20
SPARE = 16
"""Bytes that an opcode of fixed length may take, itself included."""


class SnapshotError(ValueError):
    """A file that is no snapshot, or that asks for more than one needs."""


class Stream:
    """A window over a file.

    Attributes
    ----------
    data, at
        Bytes at hand, and the place of the next one. `ready` keeps `SPARE` of them at hand.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.data, self.at = b"", 0
        self._file, self._before = file, 0
        self._ended = False

    @property
    def offset(self) -> int:
        """Place of the next byte in the file."""
        return self._before + self.at

    def ready(self) -> None:
        """See that an opcode of fixed length lies in the window, unless the file ends first."""
        if self.at > len(self.data) - SPARE:
            self._refill()

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes; raises `SnapshotError` where the file ends before."""
        while self.at + size > len(self.data):
            self._refill()
            if self._ended and self.at + size > len(self.data):
                raise self.cut_short()
        taken = self.data[self.at : self.at + size]
        self.at += size
        return taken

    def is_at_end(self) -> bool:
        """Whether nothing is left."""
        self.ready()
        return self.at >= len(self.data)

    def cut_short(self) -> SnapshotError:
        """Return the error of a file that ends too early, or points at nothing."""
        return SnapshotError(
            f"the file ends, or points at nothing, at byte {self.offset}; it was cut short: "
            "write the snapshot again"
        )

    def _refill(self) -> None:
        fresh = b"" if self._ended else self._file.read(CHUNK)
        self._ended = not fresh
        if fresh:
            self._before += self.at
            self.data, self.at = self.data[self.at :] + fresh, 0
