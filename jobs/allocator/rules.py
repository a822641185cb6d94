"""Rules and sizes of PyTorch's CUDA caching allocator, each with where it stands there.

Functions are those of ``c10/cuda/CUDACachingAllocator.cpp``, read in release 2.4; sizes those of
``c10/core/AllocatorConfig.h``, in 2.13.
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
"""``kLargeBuffer``, in 2.13 ``large_segment_size``: for requests below `LARGE_REQUEST`, and a page
of an expandable segment of the large pool."""

LARGE_REQUEST = 10 * MIB
"""``kMinLargeAlloc``: from here on a segment is as large as the request …"""

SEGMENT_STEP = 2 * MIB
"""``kRoundLarge``: … rounded up to a multiple of this."""


class DeviceFullError(RuntimeError):
    """A request that does not fit, with nothing left to give back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What ``PYTORCH_CUDA_ALLOC_CONF`` says, and the memory there is.

    Parameters
    ----------
    capacity_bytes
        Most that may be reserved; ``None``: no limit.
    expandable
        ``expandable_segments:True``.
    max_split_bytes
        ``max_split_size_mb``, in bytes: blocks of this size or more are not split.
    collect_above
        ``garbage_collection_threshold``: part of the capacity above which blocks that have waited
        longer than the mean are given back first; 0: never.
    """

    capacity_bytes: int | None = None
    expandable: bool = False
    max_split_bytes: int | None = None
    collect_above: float = 0.0


def round_request(size: int) -> int:
    """Return the bytes of a block for a request (``round_size``)."""
    return align_up(max(size, BLOCK), BLOCK)


def segment_bytes(rounded: int) -> int:
    """Return what is taken from CUDA for a rounded request (``get_allocation_size``)."""
    if rounded <= SMALL_REQUEST:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if rounded < LARGE_REQUEST else align_up(rounded, SEGMENT_STEP)
