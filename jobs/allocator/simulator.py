"""PyTorch's CUDA caching allocator, simulated: segments, splitting, merging, giving back.

From requests and their ends follow what is reserved from CUDA, and what of it is fragments. Each
step names the function of ``CUDACachingAllocator.cpp`` that it follows; sizes are in
`jobs.allocator.rules`. Left out: captured graphs, private pools that serve others or split nothing
(``use_on_oom``, ``no_split``), allocators of one's own, and sharing between processes.
"""

from collections.abc import Hashable, Iterable

from jobs.allocator.blocks import Block, Pool
from jobs.allocator.expandable import grow, shrink
from jobs.allocator.memory import DeviceMemory
from jobs.allocator.rules import (
    BLOCK,
    SMALL_REQUEST,
    SMALL_SEGMENT,
    DeviceFullError,
    Settings,
    round_request,
    segment_bytes,
)
from jobs.allocator.uses import StreamUses


class CachingAllocator:
    """Serves requests as the caching allocator does, on addresses of its own.

    Parameters
    ----------
    settings
        By default none, and memory without end.

    Attributes
    ----------
    memory
        What is held from CUDA.
    allocated_bytes, active_bytes
        Blocks in use; and with them those given back that another stream still uses.
        ``allocated_peak_bytes``: the most in use so far.
    retries, ooms
        Requests for which everything that waited was given back first, and those that failed.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.memory = DeviceMemory(self.settings)
        self.allocated_bytes = self.allocated_peak_bytes = self.active_bytes = 0
        self.retries = self.ooms = 0
        self._uses = StreamUses()
        self._shared = self._pools(None)
        self._private: dict[Hashable, tuple[Pool, Pool]] = {}
        self._abandoned: list[tuple[Pool, Pool]] = []

    def malloc(self, size: int, stream: int = 0, pool: Hashable | None = None) -> Block:
        """Return a block of at least ``size`` bytes (``malloc``).

        Parameters
        ----------
        size, stream
            Bytes, and the stream that is current.
        pool
            Name of the private pool that is in use (``use_mem_pool``); ``None``: none is.

        Raises
        ------
        DeviceFullError
            When it does not fit, whatever is given back.
        """
        self._settle(self._uses.noticed())
        rounded = round_request(size, self.settings.divisions)
        small, large = self._shared if pool is None else self._private_pools(pool)
        place = small if rounded <= SMALL_REQUEST else large
        block = self._find(place, rounded, stream) or self._obtain(place, rounded, stream)
        if self._splits(block, rounded):
            place.put(block.cut(rounded))
        block.in_use, block.requested = True, size
        self.active_bytes += block.size
        self.allocated_bytes += block.size
        self.allocated_peak_bytes = max(self.allocated_peak_bytes, self.allocated_bytes)
        return block

    def free(self, block: Block) -> None:
        """Take a block back: at once, or when the streams that use it have done so (``free``).

        Raises
        ------
        ValueError
            For a block that is free already.
        """
        if not block.in_use:
            raise ValueError(f"the block at {block.address} is free already")
        block.in_use = False
        self.allocated_bytes -= block.size
        if block.used_by:
            self._uses.wait(block)
        else:
            self._settle([block])

    def record_stream(self, block: Block, stream: int) -> None:
        """Note that another stream uses a block (``recordStream``)."""
        if stream != block.stream:
            block.used_by.add(stream)

    def finish(self, stream: int | None = None) -> None:
        """Take a stream's work so far, or everybody's, to be done; the next request notices."""
        self._uses.finish(stream)

    def empty_cache(self) -> None:
        """Give back all that waits and can go (``release_cached_blocks``)."""
        self._settle(self._uses.awaited())
        for pools in (self._shared, *self._abandoned):
            self._give_back(pools)

    def abandon(self, pool: Hashable) -> None:
        """Give a private pool up, if it has served: what waits goes back, the rest once it is free.

        Source: ``MemPool``'s destructor, which releases the pool and empties it.
        """
        pools = self._private.pop(pool, None)
        if pools is None:
            return
        self._abandoned.append(pools)
        self._settle(self._uses.awaited(pools))
        self._give_back(pools)

    def blocks(self) -> list[Block]:
        """Return all free blocks with memory behind them, of every pool."""
        owners = (self._shared, *self._private.values(), *self._abandoned)
        return [block for pools in owners for pool in pools for block in pool.waiting()]

    def _pools(self, owner: Hashable | None) -> tuple[Pool, Pool]:
        """Return the pools of small and of large blocks of one owner."""
        large = self.settings.large_segment_bytes
        return Pool(True, SMALL_SEGMENT, owner), Pool(False, large, owner)

    def _private_pools(self, name: Hashable) -> tuple[Pool, Pool]:
        if name not in self._private:
            self._private[name] = self._pools(name)
        return self._private[name]

    def _settle(self, blocks: Iterable[Block]) -> None:
        """Let blocks wait that nobody uses any more, with free neighbours (``free_block``)."""
        for block in blocks:
            block.requested = 0
            self.active_bytes -= block.size
            block.merge()
            block.pool.put(block)

    def _find(self, pool: Pool, rounded: int, stream: int) -> Block | None:
        """Take the best waiting block (``get_free_block``)."""
        pool.searches += 1
        candidates = pool.at_least(rounded, stream)
        best = next(candidates, None)
        if best is None:
            return None
        if best.expandable:
            for other in candidates:  # what it could grow to is taken for its size
                if other.room >= best.room:
                    break
                best = other
        limit = self.settings.max_split_bytes
        if limit is not None:
            if rounded < limit <= best.size:
                return None
            slack = self.settings.max_slack_bytes or self.settings.large_segment_bytes
            if rounded >= limit and best.size >= rounded + slack:
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

    def _obtain(self, pool: Pool, rounded: int, stream: int) -> Block:
        """Take memory from CUDA, giving back what must go first (``malloc``)."""
        if self.settings.collects:
            self._collect()
        block = self._reserve(pool, rounded, stream)
        if block is None and self._release_large(pool, rounded, stream):
            block = self._reserve(pool, rounded, stream)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._reserve(pool, rounded, stream)
        if block is None:
            self.ooms += 1
            raise DeviceFullError(
                f"{rounded} bytes do not fit: {self.memory.reserved_bytes} of {self.memory.most} "
                f"are reserved, {self.allocated_bytes} in use"
            )
        return block

    def _reserve(self, pool: Pool, rounded: int, stream: int) -> Block | None:
        """Make a segment, or grow one (``alloc_block``); nothing where it does not fit."""
        size = segment_bytes(rounded, self.settings.large_segment_bytes)
        if not self.memory.allows(size):
            return None
        if self.settings.expandable:
            return grow(self.memory, pool, stream, rounded)
        if not self.memory.take(size):
            return None
        return Block(self.memory.place(size), size, pool, stream)

    def _give_back(self, pools: Iterable[Pool]) -> None:
        """Give back what waits there and can go (``release_blocks``)."""
        for pool in pools:
            for block in pool.waiting():
                if block.expandable:
                    if shrink(self.memory, block):
                        self._uses.finish(block.stream)  # unmapping waits for the stream
                elif not block.is_split:
                    self._release(block)

    def _release(self, block: Block) -> None:
        block.pool.remove(block)
        self.memory.give(block.size)

    def _release_large(self, pool: Pool, rounded: int, stream: int) -> bool:
        """Give back unsplittable blocks until the request fits (``release_available_cached…``)."""
        limit = self.settings.max_split_bytes
        if limit is None:
            return False
        wanted = max(rounded, limit)
        one = next(pool.at_least(wanted, stream), None)
        if one is not None and not one.expandable:
            self._release(one)
            return True
        given = 0
        for block in reversed(pool.waiting(stream)):
            if block.size >= wanted:
                continue
            if given >= wanted or block.size < limit:
                break
            if not block.expandable:
                given += block.size
                self._release(block)
        return given >= wanted

    def _collect(self) -> None:
        """Give back what has waited longest (``garbage_collect_cached_blocks``)."""
        allowed = self.settings.allowed_bytes
        assert allowed is not None
        target = self.memory.reserved_bytes - int(self.settings.collect_above * allowed)
        large = self._shared[1]
        waiting = [
            (large.searches - block.free_since, block)
            for block in large.waiting()
            if not block.is_split
        ]
        while target > 0 and waiting:
            mean = sum(age for age, _ in waiting) / len(waiting)
            old = {block for age, block in waiting if age >= mean and not block.expandable}
            if not old:
                return
            for block in old:
                target -= block.size
                self._release(block)
            waiting = [(age, block) for age, block in waiting if block not in old]
