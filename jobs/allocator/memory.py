"""What a simulated allocator holds from CUDA: bytes, their limits, and where they lie."""

from math import lcm

from jobs.allocator.rules import SMALL_SEGMENT, Settings
from planner.units import align_up

ADDRESSES = 2**64
"""Bytes of an expandable segment's range where the device's memory is not known: any size fits."""


class DeviceMemory:
    """The device as the allocator sees it.

    Parameters
    ----------
    settings
        Limits.

    Attributes
    ----------
    reserved_bytes, peak_bytes
        Held from CUDA now, and at most so far.
    """

    def __init__(self, settings: Settings) -> None:
        self.reserved_bytes = self.peak_bytes = 0
        self._device, self._allowed = settings.device_bytes, settings.allowed_bytes
        self._foreign = settings.foreign_bytes
        self._next_address = 0
        self._step = lcm(SMALL_SEGMENT, settings.large_segment_bytes)  # both pools' pages

    def allows(self, size: int) -> bool:
        """Whether this process may hold so much more."""
        return self._allowed is None or self.reserved_bytes + size <= self._allowed

    @property
    def most(self) -> int | None:
        """What may be reserved, in bytes; ``None``: no end."""
        there = None if self._device is None else self._device - self._foreign
        return min((n for n in (there, self._allowed) if n is not None), default=None)

    def take(self, size: int) -> bool:
        """Take memory from CUDA; whether there was as much."""
        held = self.reserved_bytes + self._foreign
        if self._device is not None and held + size > self._device:
            return False
        self.reserved_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.reserved_bytes)
        return True

    def give(self, size: int) -> None:
        """Give memory back to CUDA."""
        self.reserved_bytes -= size

    def place(self, size: int) -> int:
        """Return the address of a new segment: above every other, so that addresses tell ages.

        Source: ``BlockComparatorSizeCounterAddress``, which takes the older segment's first among
        free blocks of one size (release 2.14; before, the lower address, which CUDA chooses).
        """
        address = self._next_address
        self._next_address += align_up(size, self._step)
        return address

    def range_bytes(self, page: int) -> int:
        """Return the addresses that an expandable segment spans: 9/8 of the device's memory."""
        return align_up((self._device or ADDRESSES) * 9 // 8, page)
