"""The steps of a timeline, played on a simulated allocator one by one."""

from collections.abc import Hashable
from typing import NamedTuple

from jobs.allocator.blocks import Block
from jobs.allocator.simulator import CachingAllocator


class Ask(NamedTuple):
    """``nbytes`` are asked for on a stream, in a private pool or in none, and named ``key``."""

    key: Hashable
    nbytes: int
    stream: int = 0
    pool: Hashable | None = None


class End(NamedTuple):
    """What is named ``key`` is given back."""

    key: Hashable


class Use(NamedTuple):
    """Another stream uses ``key`` as well (``Tensor.record_stream``)."""

    key: Hashable
    stream: int


class Finish(NamedTuple):
    """A stream's work so far is done, or everybody's (``synchronize``)."""

    stream: int | None


class Empty(NamedTuple):
    """All that waits is given back (``torch.cuda.empty_cache``)."""


class Abandon(NamedTuple):
    """A private pool is given up (``torch.cuda.MemPool`` dies)."""

    pool: Hashable


Step = Ask | End | Use | Finish | Empty | Abandon


class Player:
    """Plays steps on an allocator.

    Attributes
    ----------
    live
        Blocks in use, by the names of what lies in them.
    """

    def __init__(self, allocator: CachingAllocator) -> None:
        self.allocator = allocator
        self.live: dict[Hashable, Block] = {}

    def play(self, step: Step) -> None:
        """Play a step.

        Raises
        ------
        DeviceFullError
            When a request does not fit in the settings' limits.
        KeyError
            When something is given back, or used, that was not asked for.
        """
        allocator = self.allocator
        match step:
            case Ask(key, nbytes, stream, pool):
                self.live[key] = allocator.malloc(nbytes, stream, pool)
            case End(key):
                allocator.free(self.live.pop(key))
            case Use(key, stream):
                allocator.record_stream(self.live[key], stream)
            case Finish(stream):
                allocator.finish(stream)
            case Empty():
                allocator.empty_cache()
            case Abandon(pool):
                allocator.abandon(pool)
