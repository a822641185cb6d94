"""Lists of steps for the caching allocator, and what the simulated one says of them."""

import random
from collections.abc import Hashable
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from jobs.allocator.blocks import Block
from jobs.allocator.history import stated_settings
from jobs.allocator.rules import MIB, DeviceFullError, Settings
from jobs.allocator.simulator import CachingAllocator
from jobs.allocator.steps import Abandon, Ask, Empty, End, Finish, Player, Step, Use

KINDS = {"ask": Ask, "end": End, "use": Use, "finish": Finish, "empty": Empty, "abandon": Abandon}
"""Steps by the names that they have in lists."""

STREAMS, POOLS = 3, 2


def random_list(seed: int, length: int, most: int, *, private: bool = True) -> list[list[Any]]:
    """Return a list of steps; requests have up to ``most`` bytes, many of them the same.

    Parameters
    ----------
    private
        Whether private pools may be used.
    """
    draw = random.Random(seed)
    sizes = [_size(draw, most) for _ in range(draw.randint(2, 12))]
    steps: list[list[Any]] = []
    live: list[int] = []
    pools: set[int] = set()
    private = draw.random() < 0.4 and private
    streams = draw.choice((1, 1, 2, STREAMS))
    for key in range(length):
        roll = draw.random()
        if roll < 0.5 or not live:
            size = draw.choice(sizes) if draw.random() < 0.7 else _size(draw, most)
            pool = draw.randrange(POOLS) if private and draw.random() < 0.4 else None
            pools |= {pool} - {None}
            steps.append(["ask", key, size, draw.randrange(streams), pool])
            live.append(key)
        elif roll < 0.86:
            steps.append(["end", live.pop(draw.randrange(len(live)))])
        elif roll < 0.92:
            steps.append(["use", draw.choice(live), draw.randrange(streams)])
        elif roll < 0.96:
            steps.append(["finish", draw.choice((None, *range(streams)))])
        elif roll < 0.98 or not pools:
            steps.append(["empty"])
        else:
            steps.append(["abandon", pools.pop()])
    return steps


def _size(draw: random.Random, most: int) -> int:
    """Return a size of some magnitude, now and then a round one."""
    below = min(most, draw.choice((2000, MIB, 3 * MIB, 12 * MIB, 60 * MIB, most, most)))
    size = draw.randint(1, below)
    return size if draw.random() < 0.7 else -(-size // (2 * MIB)) * 2 * MIB


def settings_of(told: dict[str, Any], fraction: float = 1.0) -> Settings:
    """Return the settings that the real allocator has told, and the part of the device allowed."""
    total = told["total"]
    return replace(
        stated_settings(told["settings"]),
        device_bytes=total,
        foreign_bytes=total - told["capacity"],
        allowed_bytes=int(fraction * total) if fraction < 1 else None,
        collect_above=told["settings"]["garbage_collection_threshold"],
    )


class Simulated:
    """One list, played on a simulated allocator as `allocator_real.Real` plays it."""

    def __init__(self, settings: Settings) -> None:
        self.player = Player(CachingAllocator(settings))
        self._given: list[Block] = []
        self._refused: set[Hashable] = set()

    def play(self, step: list[Any]) -> list[int]:
        """Play a step; return reserved, allocated and active bytes, retries and failures."""
        made: Step = KINDS[step[0]](*step[1:])
        live, allocator = self.player.live, self.player.allocator
        named = isinstance(made, End | Use)
        if not named or made.key not in self._refused:
            try:
                self.player.play(made)
            except DeviceFullError:
                assert isinstance(made, Ask)
                self._refused.add(made.key)
        if isinstance(made, Ask) and made.key in live:
            self._given.append(live[made.key])
        return [
            allocator.memory.reserved_bytes,
            allocator.allocated_bytes,
            allocator.active_bytes,
            allocator.retries,
            allocator.ooms,
        ]

    def layout(self) -> list[Any]:
        """Return every segment: stream, kind, pool, and its blocks' bytes, asked and states."""
        held = [block for block in self._given if not block.is_free]
        blocks = {*held, *self.player.allocator.blocks()}
        found = []
        for block in blocks:
            if block.before is None or not block.before.mapped:
                run = [block]
                while run[-1].after is not None and run[-1].after.mapped:
                    run.append(run[-1].after)
                kind = "small" if block.pool.small else "large"
                told = [[one.size, one.requested, _state(one)] for one in run]
                found.append([block.stream, kind, block.pool.owner, told])
        return found


def _state(block: Block) -> str:
    if block.in_use:
        return "active_allocated"
    return "inactive" if block.is_free else "active_pending_free"


def difference(
    steps: list[list[Any]], answer: dict[str, Any], settings: Settings
) -> dict[str, Any] | None:
    """Play a list and return where the simulation departs from a recorded answer, if it does."""
    simulated = Simulated(settings)
    for place, (step, told) in enumerate(zip(steps, answer["figures"], strict=True)):
        said = simulated.play(step)
        if said != told:
            return {"place": place, "step": step, "real": told, "simulated": said}
    layout, told = simulated.layout(), _comparable(answer["layout"])
    if _comparable(layout) != told:
        pairs = zip_longest(told, _comparable(layout))
        place, pair = next((n, pair) for n, pair in enumerate(pairs) if pair[0] != pair[1])
        return {"segment": place, "real": pair[0], "simulated": pair[1]}
    peak = simulated.player.allocator.memory.peak_bytes
    return None if peak == answer["peak"] else {"real": answer["peak"], "simulated": peak}


def _comparable(layout: list[Any]) -> list[Any]:
    """Leave out what free blocks were last asked for, and where segments lie."""
    kept = [
        [
            stream,
            kind,
            pool,
            [[n, 0 if state == "inactive" else asked, state] for n, asked, state in run],
        ]
        for stream, kind, pool, run in layout
    ]
    return sorted(kept, key=str)
