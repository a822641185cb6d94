"""Blocks given back while streams beside their own may still use them (``record_stream``)."""

from collections import deque
from collections.abc import Container, Iterator
from dataclasses import dataclass

from jobs.allocator.blocks import Block, Pool


@dataclass(slots=True)
class _Event:
    """A mark in a stream's work, set as a block was given back."""

    block: Block
    done: bool = False

    def release(self) -> Iterator[Block]:
        """Yield the block if nothing else holds it."""
        self.block.events -= 1
        if not self.block.events:
            yield self.block


class StreamUses:
    """What streams have not done yet (``cuda_events``): of each its events, oldest first.

    Blocks come out one by one, and each must wait in its pool before the next is asked for.
    """

    def __init__(self) -> None:
        self._events: dict[int, deque[_Event]] = {}

    def wait(self, block: Block) -> None:
        """Mark the work so far of the streams that use a block (``insert_events``)."""
        for stream in block.used_by:
            block.events += 1
            self._events.setdefault(stream, deque()).append(_Event(block))
        block.used_by.clear()

    def finish(self, stream: int | None = None) -> None:
        """Take a stream's work so far, or everybody's, to be done; the next request notices."""
        for key, events in self._events.items():
            if stream in (None, key):
                for event in events:
                    event.done = True

    def noticed(self) -> Iterator[Block]:
        """Yield the blocks that nobody uses any more (``process_events``).

        A stream's events are looked at in their order, up to the first that is not done. A stream
        without any is forgotten: a history may name as many as it has blocks.
        """
        for stream, events in list(self._events.items()):
            while events and events[0].done:
                yield from events.popleft().release()
            if not events:
                del self._events[stream]

    def awaited(self, pools: Container[Pool] | None = None) -> Iterator[Block]:
        """Wait for all work, or for that on blocks of some pools, and yield these blocks.

        Source: ``synchronize_and_free_events``.
        """
        for stream, events in self._events.items():
            kept: deque[_Event] = deque()
            for event in events:
                if pools is None or event.block.pool in pools:
                    yield from event.release()
                else:
                    kept.append(event)
            self._events[stream] = kept
