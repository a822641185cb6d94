"""The bytes of a file as a reader of opcodes wants them: a window that moves on."""

from typing import BinaryIO

CHUNK = 1 << 18
"""Bytes read at a time; while the window moves on, three of these lie in memory."""

SPARE = 16
"""Bytes that an opcode of fixed length may take, itself included."""


class SnapshotError(ValueError):
    """A file that is no snapshot, or that asks for more than one needs."""


class Stream:
    """A window over a file of ``size`` bytes.

    Attributes
    ----------
    data, at
        Bytes at hand, and the place of the next one. `ready` keeps `SPARE` of them at hand.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.data, self.at = b"", 0
        self._file, self._size, self._before = file, size, 0

    @property
    def offset(self) -> int:
        """Place of the next byte in the file."""
        return self._before + self.at

    def ready(self) -> None:
        """See that an opcode of fixed length lies in the window, unless the file ends first."""
        if self.at > len(self.data) - SPARE:
            self._refill(CHUNK)

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes; raises `SnapshotError` where the file ends before."""
        missing = self.at + size - len(self.data)
        if missing > 0:
            if self.offset + size > self._size:
                raise self.cut_short()
            self._refill(max(CHUNK, missing))
            if self.at + size > len(self.data):
                raise self.cut_short()  # the file has shrunk meanwhile
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

    def _refill(self, size: int) -> None:
        fresh = self._file.read(size)
        if fresh:
            self._before += self.at
            self.data, self.at = self.data[self.at :] + fresh, 0
