"""Which waiting cells go into which job array, and how many of each may run at once."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from jobs.slurm.flight import Waiting


@dataclass(frozen=True, slots=True)
class Planned:
    """One array to be: its cells, all with so many ranks, and how many may run at once."""

    cells: tuple[Waiting, ...]
    ranks: int
    parallel: int


def plan(waiting: Sequence[Waiting], free: int, array_limit: int) -> list[Planned]:
    """Plan arrays for as many cells as ``free`` ranks have room for at some time.

    Cells with the same number of ranks share arrays, each of at most ``array_limit`` cells. The
    free ranks are divided among the arrays by the work they hold, widest cells first; an array that
    not even one cell of would fit is left out, until there is room.

    Parameters
    ----------
    free
        Ranks that all these arrays together may occupy at any time.
    """
    by_ranks: dict[int, list[Waiting]] = defaultdict(list)
    for cell in waiting:
        by_ranks[len(cell.spec.ranks)].append(cell)
    arrays = [
        (ranks, cells[start : start + array_limit])
        for ranks, cells in sorted(by_ranks.items(), reverse=True)
        for start in range(0, len(cells), array_limit)
    ]
    work = sum(ranks * len(cells) for ranks, cells in arrays)
    planned = []
    for ranks, cells in arrays:
        mine = ranks * len(cells)
        share = free * mine // work // ranks
        work -= mine
        parallel = min(len(cells), max(1, share))
        if ranks * parallel <= free:
            planned.append(Planned(tuple(cells), ranks, parallel))
            free -= ranks * parallel
    return planned
