"""Expandable segments: one range of addresses for a pool and stream, memory behind pages of it."""

from jobs.allocator.blocks import Block, Pool
from jobs.allocator.memory import DeviceMemory
from planner.units import align_up


def grow(memory: DeviceMemory, pool: Pool, stream: int, rounded: int) -> Block | None:
    """Map pages until a free stretch holds the request (``try_allocate_expandable_block``).

    Returns
    -------
    Block | None
        Out of its pool; ``None`` where the device is full. Pages mapped until then stay.
    """
    block = _stretch(memory, pool, stream, rounded)
    if not block.mapped and not _map(memory, block, min(block.size, rounded)):
        return None
    while block.size < rounded:
        rest = block.after
        assert rest is not None
        if not _map(memory, rest, min(rounded - block.size, rest.size)):
            return None
        block = rest  # mapping has merged the two
    pool.remove(block)
    return block


def shrink(memory: DeviceMemory, block: Block) -> bool:
    """Take the memory from a free block's whole pages (``unmap_block``); whether there were any.

    A range without any memory left is given up (``release_expandable_segment``).
    """
    pool = block.pool
    start, end = align_up(block.address, pool.page), block.end // pool.page * pool.page
    if start >= end:
        return False
    pool.remove(block)
    if end < block.end:
        pool.put(block.cut(end - block.address))
    if start > block.address:
        rest = block.cut(start - block.address)
        pool.put(block)
        block = rest
    block.mapped = False
    memory.give(block.size)
    block.merge()
    if block.is_split:
        pool.put(block)
    return True


def _stretch(memory: DeviceMemory, pool: Pool, stream: int, rounded: int) -> Block:
    """Return the lowest free stretch with room, or a new range (``find_expandable_block``)."""
    for unmapped in pool.unmapped(stream):
        start = unmapped
        if start.before is not None and start.before.is_free:
            start = start.before
        size = 0
        block: Block | None = start
        while size < rounded and block is not None and block.is_free:
            size, block = size + block.size, block.after
        if size >= rounded:
            return start
    space = memory.range_bytes(pool.page)
    fresh = Block(memory.place(space), space, pool, stream, expandable=True, mapped=False)
    pool.put(fresh)
    return fresh


def _map(memory: DeviceMemory, block: Block, size: int) -> bool:
    """Put memory behind a block's first pages (``map_block``); all of them or none."""
    pool, mapped = block.pool, align_up(size, block.pool.page)
    if not memory.take(mapped):
        return False
    pool.remove(block)
    if mapped < block.size:
        pool.put(block.cut(mapped))
    block.mapped = True
    block.merge()
    pool.put(block)
    return True
