"""Blocks of a simulated CUDA caching allocator, and the pools that free ones wait in."""

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Optional


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment; neighbours in it are linked.

    Parameters
    ----------
    address, size
        Place and bytes.
    pool, stream
        Where it waits when it is free, and whose requests it serves.
    requested
        Bytes that its user asked for; 0 while it is free.
    used_by
        Other streams that its user has named (``stream_uses``).
    events
        What of those streams' work is not known to be done, since it was given back
        (``event_count``).
    expandable
        Whether its segment can grow; ``mapped`` is then whether memory lies behind it.
    free_since
        Searches that its pool had seen when it was put there (``gc_count_base``).
    """

    address: int
    size: int
    pool: "Pool"
    stream: int
    requested: int = 0
    in_use: bool = False
    used_by: set[int] = field(default_factory=set)
    events: int = 0
    expandable: bool = False
    mapped: bool = True
    free_since: int = 0
    before: Optional["Block"] = None
    after: Optional["Block"] = None

    @property
    def is_split(self) -> bool:
        """Whether its segment holds other blocks."""
        return self.before is not None or self.after is not None

    @property
    def is_free(self) -> bool:
        """Whether nobody uses it: not its user, nor a stream that its user named."""
        return not (self.in_use or self.events or self.used_by)

    @property
    def end(self) -> int:
        """First address behind it."""
        return self.address + self.size

    @property
    def room(self) -> int:
        """What a free block could grow to."""
        behind = self.after
        return self.size + (behind.size if behind is not None and not behind.mapped else 0)

    def cut(self, size: int) -> "Block":
        """Keep the first ``size`` bytes; return the rest, a block of its own behind this one."""
        rest = Block(
            self.address + size,
            self.size - size,
            self.pool,
            self.stream,
            expandable=self.expandable,
            mapped=self.mapped,
            before=self,
            after=self.after,
        )
        if self.after is not None:
            self.after.before = rest
        self.after, self.size = rest, size
        return rest

    def merge(self) -> None:
        """Take in neighbours that are free and mapped alike (``try_merge_blocks``)."""
        for other in (self.before, self.after):
            if other is not None and other.is_free and other.mapped == self.mapped:
                other.pool.remove(other)
                self._absorb(other)

    def _absorb(self, other: "Block") -> None:
        if other is self.before:
            self.address, self.before = other.address, other.before
            if self.before is not None:
                self.before.after = self
        else:
            self.after = other.after
            if self.after is not None:
                self.after.before = self
        self.size += other.size


@dataclass(slots=True, eq=False)
class Pool:
    """Free blocks for small requests, or for large ones, of all streams (``BlockPool``).

    Parameters
    ----------
    small
        Which requests it serves.
    page
        Bytes of a segment for small requests, of a page of an expandable segment.
    owner
        The private pool that it belongs to; ``None``: everybody's.
    searches
        How often a free block was looked for (``get_free_blocks_call_count``).
    """

    small: bool
    page: int
    owner: Hashable | None = None
    searches: int = 0
    _free: list[tuple[int, int, int, Block]] = field(default_factory=list)
    _unmapped: list[tuple[int, int, Block]] = field(default_factory=list)

    def put(self, block: Block) -> None:
        """Let a block wait; one without memory behind it apart from the others."""
        if not block.mapped:
            insort(self._unmapped, (block.stream, block.address, block))
            return
        block.free_since = self.searches
        insort(self._free, (block.stream, block.size, block.address, block))

    def remove(self, block: Block) -> None:
        """Take a waiting block out."""
        if not block.mapped:
            del self._unmapped[bisect_left(self._unmapped, (block.stream, block.address))]
            return
        key = (block.stream, block.size, block.address)
        del self._free[bisect_left(self._free, key)]

    def at_least(self, size: int, stream: int) -> Iterator[Block]:
        """Yield a stream's waiting blocks of ``size`` bytes or more, smallest first, then lowest.

        Source: ``BlockComparatorSizeCounterAddress``, the order of ``BlockPool.blocks``.
        """
        for place in range(bisect_left(self._free, (stream, size)), len(self._free)):
            found = self._free[place]
            if found[0] != stream:
                return
            yield found[3]

    def waiting(self, stream: int | None = None) -> list[Block]:
        """Return the waiting blocks, all of them or one stream's, smallest first of each stream."""
        return [block for owner, _, _, block in self._free if stream in (None, owner)]

    def unmapped(self, stream: int) -> list[Block]:
        """Return a stream's parts of expandable segments without memory, lowest first."""
        return [block for owner, _, block in self._unmapped if owner == stream]
