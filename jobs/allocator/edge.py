"""The edge: the least memory on which a timeline can be served, fragments and all."""

from collections.abc import Iterable
from dataclasses import replace

from jobs.allocator.replay import replay
from jobs.allocator.rules import DeviceFullError, Settings
from jobs.allocator.steps import Step
from planner.units import MIB, Bytes

NEAR = 16 * MIB
"""How near the edge is found: what the allocator takes from CUDA at a time is 2 MiB or 20 MiB."""


def least_device(steps: Iterable[Step], settings: Settings | None = None) -> Bytes:
    """Return the least bytes for PyTorch's allocator with which it serves every step.

    It may have to give its cache back on the way. Between that and the bytes in use at most lie the
    fragments that no request fits in.

    Parameters
    ----------
    settings
        The allocator's; its ``device_bytes`` does not matter.
    """
    played = list(steps)
    chosen = settings or Settings()
    unlimited = replay(played, replace(chosen, device_bytes=None))
    short, enough = unlimited.allocated_peak_bytes - 1, unlimited.peak_bytes
    while enough - short > NEAR:
        middle = (short + enough) // 2
        try:
            replay(played, replace(chosen, device_bytes=middle, foreign_bytes=0))
        except DeviceFullError:
            short = middle
        else:
            enough = middle
    return Bytes(enough)
