"""Fragments: room on a device that PyTorch's caching allocator cannot hand out.

A device runs out when no free block is large enough, not when no byte is free. What a call may take
is therefore less than what the device and the allocator's cache have free together.
"""

from dataclasses import dataclass

from planner.units import GIB, Bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Fragments:
    """What must be free beyond a call's own bytes.

    Parameters
    ----------
    permille, nbytes
        Thousandths of the call's bytes, and bytes whatever it takes.
    source
        Where the figures are from.
    """

    permille: int
    nbytes: int
    source: str

    def lost(self, call: int) -> Bytes:
        """Return what is set aside for a call of so many bytes."""
        return Bytes(call * self.permille // 1000 + self.nbytes)

    def usable(self, room: int) -> Bytes:
        """Return how many of ``room`` bytes, free on the device or cached, a call can count on."""
        return Bytes(max(0, (room - self.nbytes) * 1000 // (1000 + self.permille)))


SOURCE = "docs/experiments/fragments.md: above all cells drawn before, rounded up"

FIXED = Fragments(permille=300, nbytes=GIB * 3 // 8, source=SOURCE)
EXPANDABLE = Fragments(permille=25, nbytes=GIB // 4, source=SOURCE)


def fragments_of(*, expandable: bool) -> Fragments:
    """Return what is lost to fragments, with ``expandable_segments:True`` or without."""
    return EXPANDABLE if expandable else FIXED
