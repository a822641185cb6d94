"""Blocks of a simulated CUDA caching allocator, and the pools that free ones wait in."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Optional


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment; neighbours in it are linked.

    Parameters
    ----------
    address, size
        Place and bytes.
    pool
        Where it waits when it is free.
    requested
        Bytes that its user asked for; 0 while it is free.
    expandable
        Whether its segment can grow; ``mapped`` is then whether memory lies behind it.
    free_since
        Searches that its pool had seen when it was put there.
    """

    address: int
    size: int
    pool: "Pool"
    requested: int = 0
    in_use: bool = False
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
    def end(self) -> int:
        """First address behind it."""
        return self.address + self.size

    def cut(self, size: int) -> "Block":
        """Keep the first ``size`` bytes; return the rest, a block of its own behind this one."""
        rest = Block(
            self.address + size,
            self.size - size,
            self.pool,
            expandable=self.expandable,
            mapped=self.mapped,
            before=self,
            after=self.after,
        )
        if self.after is not None:
            self.after.before = rest
        self.after, self.size = rest, size
        return rest

    def absorb(self, other: "Block") -> None:
        """Take in a neighbour that is out of its pool."""
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
    """Free blocks of one stream, small or large ones.

    Parameters
    ----------
    page
        Bytes of a segment for small requests, of a page of an expandable segment.
    searches
        How often a free block was looked for, counted as ages are measured.
    unmapped
        Parts of expandable segments without memory, by address.
    """

    stream: int
    small: bool
    page: int
    searches: int = 0
    _free: list[tuple[int, int, Block]] = field(default_factory=list)
    unmapped: list[tuple[int, Block]] = field(default_factory=list)

    def put(self, block: Block) -> None:
        """Let a block wait."""
        block.free_since = self.searches
        insort(self._free, (block.size, block.address, block))

    def remove(self, block: Block) -> None:
        """Take a waiting block out."""
        del self._free[bisect_left(self._free, (block.size, block.address))]

    def at_least(self, size: int) -> Iterator[Block]:
        """Yield waiting blocks of ``size`` bytes or more, smallest first, then lowest."""
        for place in range(bisect_left(self._free, (size,)), len(self._free)):
            yield self._free[place][2]

    def waiting(self) -> list[Block]:
        """Return all waiting blocks, smallest first."""
        return [block for _, _, block in self._free]

    def put_unmapped(self, block: Block) -> None:
        """Enter a part without memory."""
        insort(self.unmapped, (block.address, block))

    def remove_unmapped(self, block: Block) -> None:
        """Take such a part out."""
        del self.unmapped[bisect_left(self.unmapped, (block.address,))]
