"""PyTorch's CUDA caching allocator, simulated: segments, splitting, merging, giving back.

From requests and their ends follow what is reserved from CUDA, and what of it is fragments. Each
step names the function of ``CUDACachingAllocator.cpp`` that it follows; sizes are in
`jobs.allocator.rules`. Left out, since they depend on time or on what runs: blocks that other
streams still use, graphs' private pools, and addresses as CUDA gives them (among waiting blocks of
one size the older segment's is taken).
"""

from jobs.allocator.blocks import Block, Pool
from jobs.allocator.rules import (
    BLOCK,
    LARGE_SEGMENT,
    SMALL_REQUEST,
    SMALL_SEGMENT,
    DeviceFullError,
    Settings,
    round_request,
    segment_bytes,
)
from planner.units import align_up

ADDRESSES = 2**44
"""Bytes of an expandable segment's range where the memory's size is not known."""


class CachingAllocator:
    """Serves requests as the caching allocator does, on addresses of its own.

    Attributes
    ----------
    allocated_bytes, reserved_bytes
        Blocks in use, and what is held from CUDA; ``…_peak_bytes``: the highest so far.
    segments
        Segments of fixed size that are held.
    retries
        Requests for which everything that waited had to be given back first.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.allocated_bytes = self.allocated_peak_bytes = 0
        self.reserved_bytes = self.reserved_peak_bytes = 0
        self.segments = self.retries = 0
        self._pools: dict[tuple[int, bool], Pool] = {}
        self._next_address = 0

    def malloc(self, size: int, stream: int = 0) -> Block:
        """Return a block of at least ``size`` bytes.

        Raises
        ------
        DeviceFullError
            When it does not fit in the capacity, whatever is given back.
        """
        rounded = round_request(size)
        pool = self._pool(rounded, stream)
        block = self._find(pool, rounded) or self._obtain(pool, rounded)
        if self._splits(block, rounded):
            pool.put(block.cut(rounded))
        block.in_use, block.requested = True, size
        self.allocated_bytes += block.size
        self.allocated_peak_bytes = max(self.allocated_peak_bytes, self.allocated_bytes)
        return block

    def free(self, block: Block) -> None:
        """Take a block back: it joins free neighbours and waits (``free_block``).

        Raises
        ------
        ValueError
            For a block that is free already.
        """
        if not block.in_use:
            raise ValueError(f"the block at {block.address} is free already")
        block.in_use, block.requested = False, 0
        self.allocated_bytes -= block.size
        self._merge(block)
        block.pool.put(block)

    def empty_cache(self) -> None:
        """Give back all that waits and can go (``release_cached_blocks``)."""
        for pool in self._pools.values():
            for block in pool.waiting():
                if block.expandable:
                    self._unmap(block)
                elif not block.is_split:
                    self._release(block)

    def _pool(self, rounded: int, stream: int) -> Pool:
        small = rounded <= SMALL_REQUEST
        page = SMALL_SEGMENT if small else LARGE_SEGMENT
        return self._pools.setdefault((stream, small), Pool(stream, small, page))

    def _find(self, pool: Pool, rounded: int) -> Block | None:
        """Take the best waiting block (``get_free_block``)."""
        pool.searches += 1
        candidates = pool.at_least(rounded)
        best = next(candidates, None)
        if best is None:
            return None
        if best.expandable:
            for other in candidates:  # what it could grow to is taken for its size
                if _room(other) >= _room(best):
                    break
                best = other
        limit = self.settings.max_split_bytes
        if limit is not None:
            if rounded < limit <= best.size:
                return None
            if rounded >= limit and best.size >= rounded + LARGE_SEGMENT:
                return None
        pool.remove(best)
        return best

    def _splits(self, block: Block, rounded: int) -> bool:
        """Whether what a block has beyond the request is cut off (``should_split``)."""
        beyond = block.size - rounded
        if block.pool.small or self.settings.expandable:
            return beyond >= BLOCK
        limit = self.settings.max_split_bytes
        return (limit is None or rounded < limit) and beyond > SMALL_REQUEST

    def _obtain(self, pool: Pool, rounded: int) -> Block:
        """Take memory from CUDA, giving back what must go first (``malloc``)."""
        if self.settings.collect_above and self.settings.capacity_bytes is not None:
            self._collect(self.settings.collect_above * self.settings.capacity_bytes)
        block = self._reserve(pool, rounded)
        if block is None and self._release_large(pool, rounded):
            block = self._reserve(pool, rounded)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._reserve(pool, rounded)
        if block is None:
            raise DeviceFullError(
                f"{rounded} bytes do not fit: {self.reserved_bytes} of "
                f"{self.settings.capacity_bytes} are reserved, {self.allocated_bytes} in use"
            )
        return block

    def _reserve(self, pool: Pool, rounded: int) -> Block | None:
        """Make a segment, or grow one (``alloc_block``); nothing where it does not fit."""
        size = segment_bytes(rounded)
        if not self._fits(size):
            return None
        if self.settings.expandable:
            return self._grow(pool, rounded)
        self._count(size)
        self.segments += 1
        return Block(self._take_addresses(size), size, pool)

    def _fits(self, size: int) -> bool:
        capacity = self.settings.capacity_bytes
        return capacity is None or self.reserved_bytes + size <= capacity

    def _count(self, size: int) -> None:
        self.reserved_bytes += size
        self.reserved_peak_bytes = max(self.reserved_peak_bytes, self.reserved_bytes)

    def _take_addresses(self, size: int) -> int:
        address = self._next_address
        self._next_address += align_up(size, LARGE_SEGMENT)
        return address

    def _merge(self, block: Block) -> None:
        """Take in neighbours that are free and mapped alike (``try_merge_blocks``)."""
        for other in (block.before, block.after):
            if other is None or other.in_use or other.mapped != block.mapped:
                continue
            if other.mapped:
                other.pool.remove(other)
            else:
                other.pool.remove_unmapped(other)
            block.absorb(other)

    def _release(self, block: Block) -> None:
        block.pool.remove(block)
        self.reserved_bytes -= block.size
        self.segments -= 1

    def _release_large(self, pool: Pool, rounded: int) -> bool:
        """Give back unsplittable blocks until the request fits (``release_available_cached…``)."""
        limit = self.settings.max_split_bytes
        if limit is None:
            return False
        wanted = max(rounded, limit)
        one = next(pool.at_least(wanted), None)
        if one is not None:
            self._release(one)
            return True
        given = 0
        for block in reversed(pool.waiting()):
            if given >= wanted or block.size < limit:
                break
            given += block.size
            self._release(block)
        return given >= wanted

    def _collect(self, threshold: float) -> None:
        """Give back what has waited longest (``garbage_collect_cached_blocks``)."""
        target = self.reserved_bytes - threshold
        waiting = [
            (pool.searches - block.free_since, block)
            for pool in self._pools.values()
            if not pool.small
            for block in pool.waiting()
            if not block.is_split and not block.expandable
        ]
        while target > 0 and waiting:
            mean = sum(age for age, _ in waiting) / len(waiting)
            for age, block in waiting:
                if age >= mean:
                    target -= block.size
                    self._release(block)
            waiting = [(age, block) for age, block in waiting if age < mean]

    # Expandable segments: one range of addresses for each pool, memory behind whole pages of it.

    def _grow(self, pool: Pool, rounded: int) -> Block | None:
        """Map pages until a free stretch holds the request (``try_allocate_expandable_block``)."""
        block = self._stretch(pool, rounded)
        if not block.mapped and not self._map(block, min(block.size, rounded)):
            return None
        while block.size < rounded:
            rest = block.after
            assert rest is not None
            if not self._map(rest, min(rounded - block.size, rest.size)):
                return None
            block = rest  # mapping has merged the two
        pool.remove(block)
        return block

    def _stretch(self, pool: Pool, rounded: int) -> Block:
        """Return the lowest free stretch with room, or a new one (``find_expandable_block``)."""
        for _, unmapped in pool.unmapped:
            start = unmapped
            if start.before is not None and not start.before.in_use:
                start = start.before
            size = 0
            block: Block | None = start
            while size < rounded and block is not None and not block.in_use:
                size, block = size + block.size, block.after
            if size >= rounded:
                return start
        space = align_up((self.settings.capacity_bytes or ADDRESSES) * 9 // 8, pool.page)
        fresh = Block(self._take_addresses(space), space, pool, expandable=True, mapped=False)
        pool.put_unmapped(fresh)
        return fresh

    def _map(self, block: Block, size: int) -> bool:
        """Put memory behind a block's first pages (``map_block``)."""
        mapped = align_up(size, block.pool.page)
        if not self._fits(mapped):
            return False
        block.pool.remove_unmapped(block)
        if mapped < block.size:
            block.pool.put_unmapped(block.cut(mapped))
        block.mapped = True
        self._count(mapped)
        self._merge(block)
        block.pool.put(block)
        return True

    def _unmap(self, block: Block) -> None:
        """Take the memory from a free block's whole pages (``unmap_block``)."""
        page = block.pool.page
        start, end = align_up(block.address, page), block.end // page * page
        if start >= end:
            return
        block.pool.remove(block)
        if end < block.end:
            block.pool.put(block.cut(end - block.address))
        if start > block.address:
            rest = block.cut(start - block.address)
            block.pool.put(block)
            block = rest
        block.mapped = False
        self.reserved_bytes -= block.size
        self._merge(block)
        block.pool.put_unmapped(block)


def _room(block: Block) -> int:
    """Return what a free block could grow to."""
    behind = block.after
    return block.size + (behind.size if behind is not None and not behind.mapped else 0)
