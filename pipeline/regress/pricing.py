"""Pricing: the bytes of one copy of every coefficient behind many sightings, a kind at a time.

What does not depend on routed rows is folded once for each kind of rank; the rest is a product of
arrays, so that a record costs microseconds.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.regress.rows import Floats, Ints
from pipeline.regress.sighting import Kind, Sightings
from planner.coefficients import Coefficients
from planner.compiled import TermCompiler
from planner.local import Local
from planner.moments import Moment
from planner.size import QUANTITIES
from planner.work import Work

AT_ONCE = 4096
"""Sightings that are priced together."""
HERE, BELOW, REST = (QUANTITIES.index(n) for n in ("rows", "rows_reached", "rows_passed"))


class Key(NamedTuple):
    """A coefficient: an entry of the table, by place, and its copies before the fit."""

    entry: int
    milli: int


class Priced(NamedTuple):
    """Sightings of one kind, priced.

    Parameters
    ----------
    sighting
        (sightings,) their places.
    moments
        The moments that their calls pass through.
    rows
        (sightings, moments, coefficients) bytes of one copy, at the layer that is fullest there
        under the table's copies.
    keys
        Place of the coefficient of each term at a moment.
    """

    sighting: Ints
    moments: tuple[Moment, ...]
    rows: npt.NDArray[np.float64]
    keys: Mapping[tuple[Moment, str], int]


class Pricing:
    """Prices sightings under one table; ``keys`` are the coefficients that any of them has."""

    def __init__(self, kinds: Sequence[Kind], table: Coefficients) -> None:
        compiler = TermCompiler(table)
        known: dict[Local, _Stages] = {}
        for kind in kinds:
            if kind.local not in known:
                known[kind.local] = _Stages(kind, table, compiler)
        self._stages = [known[kind.local] for kind in kinds]
        found = {key for stages in known.values() for key in stages.key.values()}
        self.keys = tuple(sorted(found, key=lambda key: (key.entry, -key.milli)))

    def parts(self, sightings: Sightings) -> Iterator[Priced]:
        """Price sightings, at most `AT_ONCE` of one kind at a time."""
        at = {key: place for place, key in enumerate(self.keys)}
        for kind, stages in enumerate(self._stages):
            of_kind = np.flatnonzero(sightings.kind == kind)
            if not len(of_kind):
                continue
            units = stages.units(at)
            keys = {where: at[key] for where, key in stages.key.items()}
            for start in range(0, len(of_kind), AT_ONCE):
                some = of_kind[start : start + AT_ONCE]
                counts = quantities(sightings.kinds[kind].work, sightings.rows[some])
                yield Priced(some, stages.moments, stages.price(counts, units), keys)


class _Stages:
    """The moments of one kind of rank, and the coefficient of each term that is live there."""

    def __init__(self, kind: Kind, table: Coefficients, compiler: TermCompiler) -> None:
        entries = {
            entry.term: place
            for place, entry in enumerate(table.copies)
            if entry.when.mismatch(kind.local) is None
        }
        stages = compiler.compile(kind.local).stages
        self.moments = tuple(stage.moment for stage in stages)
        self.key: dict[tuple[Moment, str], Key] = {}
        self._weights: list[tuple[int, Key, int, float]] = []
        for number, stage in enumerate(stages):
            for live in stage.live:
                key = Key(entries[live.term.name], live.copies_milli)
                self.key[stage.moment, live.term.name] = key
                self._weights += [
                    (number, key, index, weight / live.copies_milli)
                    for index, weight in live.weights
                ]

    def units(self, at: Mapping[Key, int]) -> Floats:
        """Return (moments, quantities, coefficients) bytes of one copy per unit."""
        units = np.zeros((len(self.moments), len(QUANTITIES), len(at)))
        for number, key, index, size in self._weights:
            units[number, index, at[key]] += size
        return units

    def price(self, counts: Floats, units: Floats) -> Floats:
        """Return the bytes of one copy at the fullest layer of each moment."""
        total = np.zeros((len(self.moments), len(QUANTITIES)))
        for number, key, index, size in self._weights:
            total[number, index] += size * key.milli
        rows = np.empty((len(counts), len(self.moments), units.shape[2]))
        each = np.arange(len(counts))
        for number, moment in enumerate(self.moments):
            if moment is Moment.BETWEEN_CALLS:
                here = counts[:, -1]
            else:
                here = counts[each, np.argmax(counts[:, :-1] @ total[number], axis=1)]
            rows[:, number] = here @ units[number]
        return rows


def quantities(work: Work, rows: Ints) -> Floats:
    """Return (calls, layers and the end, quantities) counts, as `planner.work.Work.at` has them.

    Parameters
    ----------
    work
        Counts that the calls share.
    rows
        (calls, layers or more) routed rows of each call.
    """
    base = np.array([work.at(layer, 0) for layer in range(work.layers + 1)], dtype=float)
    counts = np.repeat(base[None], len(rows), axis=0)
    mine = rows[:, : work.layers]
    below = np.cumsum(mine, axis=1)
    total = mine.sum(axis=1)
    counts[:, :-1, HERE] = mine
    counts[:, :-1, BELOW] = below
    counts[:, :-1, REST] = total[:, None] - below
    counts[:, -1, REST] = total
    return counts
