"""Rules and sizes of PyTorch's CUDA caching allocator, each with where it stands there.

Functions are those of ``c10/cuda/CUDACachingAllocator.cpp``, sizes those of
``c10/core/AllocatorConfig.h``, both of release 2.14; what the simulation makes of them is held
against that release's allocator (``tests/emulated/test_allocator.py``).
"""

from dataclasses import dataclass

from planner.units import align_up

MIB = 2**20
BLOCK = 512
"""``kMinBlockSize``: every request is rounded up to a multiple (``round_size``)."""

SMALL_REQUEST = MIB
"""``kSmallSize``: requests up to here go to the small pool (``get_pool``)."""

SMALL_SEGMENT = 2 * MIB
"""``kSmallBuffer``: what the small pool takes from CUDA at a time (``get_allocation_size``)."""

LARGE_SEGMENT = 20 * MIB
"""Default of ``large_segment_size``, before 2.13 ``kLargeBuffer``: what the large pool takes for
requests below `LARGE_REQUEST`, and a page of its expandable segments."""

LARGE_REQUEST = 10 * MIB
"""``kMinLargeAlloc``: from here on a segment is as large as the request …"""

SEGMENT_STEP = 2 * MIB
"""``kRoundLarge``: … rounded up to a multiple of this."""

DIVISION_STEPS = 16
"""Entries of ``roundup_power2_divisions``: for sizes up to 2 MiB, to 4 MiB, …, above 32 GiB."""


class DeviceFullError(RuntimeError):
    """A request that does not fit, with nothing left to give back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What ``PYTORCH_ALLOC_CONF`` says, and the memory there is.

    Parameters
    ----------
    device_bytes, foreign_bytes
        Memory of the device, ``None``: no end; and what of it others hold, CUDA's context included.
    allowed_bytes
        ``set_per_process_memory_fraction``, in bytes: most that may be reserved; ``None``: all.
    expandable
        ``expandable_segments:True``.
    large_segment_bytes
        ``large_segment_size_mb``, in bytes.
    max_split_bytes
        ``max_split_size_mb``, in bytes: blocks of this size or more are not split.
    max_slack_bytes
        ``max_non_split_rounding_mb``, in bytes: such a block serves requests that are less than
        this smaller; ``None``: ``large_segment_bytes``.
    collect_above
        ``garbage_collection_threshold``: part of ``allowed_bytes`` above which blocks that have
        waited longer than the mean are given back first; 0: never.
    divisions
        ``roundup_power2_divisions``, `DIVISION_STEPS` of them: steps into which the way from each
        power of two to the next is cut, to which requests are rounded up; empty: none.
    """

    device_bytes: int | None = None
    foreign_bytes: int = 0
    allowed_bytes: int | None = None
    expandable: bool = False
    large_segment_bytes: int = LARGE_SEGMENT
    max_split_bytes: int | None = None
    max_slack_bytes: int | None = None
    collect_above: float = 0.0
    divisions: tuple[int, ...] = ()

    @property
    def collects(self) -> bool:
        """Whether blocks that have waited long are given back."""
        return self.allowed_bytes is not None and self.collect_above > 0


def round_request(size: int, divisions: tuple[int, ...] = ()) -> int:
    """Return the bytes of a block for a request (``round_size``)."""
    if divisions and size >= BLOCK:
        steps = divisions[min(max(0, size.bit_length() - MIB.bit_length()), len(divisions) - 1)]
        if steps > 1 and size > BLOCK * steps:
            return _round_to_division(size, steps)
    return align_up(max(size, BLOCK), BLOCK)


def _round_to_division(size: int, steps: int) -> int:
    """Return the next of ``steps`` between two powers of two (``roundup_power2_next_division``)."""
    below = 1 << (size.bit_length() - 1)
    return align_up(size, max(1, below // (1 << (steps.bit_length() - 1))))


def segment_bytes(rounded: int, large: int = LARGE_SEGMENT) -> int:
    """Return what is taken from CUDA for a rounded request (``get_allocation_size``).

    Parameters
    ----------
    large
        Bytes of a segment for large requests below `LARGE_REQUEST`.
    """
    if rounded <= SMALL_REQUEST:
        return SMALL_SEGMENT
    return large if rounded < LARGE_REQUEST else align_up(rounded, SEGMENT_STEP)
