"""Sightings: what was seen of one call on one rank, and the rows of bytes per copy behind it.

A sighting of a peak has a row for every moment that may be the peak; which it is depends on the
copies. A coefficient is one entry of a table and the moments at which it has the same copies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.regress.solve import Floats
from planner.coefficients import MILLI, Coefficients
from planner.compiled import TermCompiler, dot
from planner.figures import Figures
from planner.forms import PEAK_PHASES
from planner.loads import NO_GROWTH
from planner.local import Local
from planner.moments import Moment, Phase
from planner.work import Work


@dataclass(frozen=True, kw_only=True, slots=True)
class Sighting:
    """One call on one rank.

    Parameters
    ----------
    facts
        What groups sightings: model, size, topology, class.
    seen
        Bytes observed: the fullest moment of a phase; of the whole call under ``None``.
    terms
        Bytes observed of each term at a moment, where a ledger saw them.
    """

    label: str
    facts: Mapping[str, str]
    local: Local
    work: Work
    seen: Mapping[Phase | None, int]
    terms: Mapping[tuple[Moment, str], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Key:
    """A coefficient: an entry of the table, by place, and its copies before the fit."""

    entry: int
    milli: int


@dataclass(frozen=True, slots=True)
class Shape:
    """Bytes of one copy of every coefficient, a row for each moment that may be the fullest."""

    rows: Floats
    moments: tuple[Moment, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """One observed figure of a sighting, and the place of its shape in the design."""

    sighting: int
    phase: Phase | None
    observed: int
    shape: int


@dataclass(frozen=True, slots=True)
class Design:
    """All targets over the coefficients of one table; sightings that are alike share shapes."""

    table: Coefficients
    keys: tuple[Key, ...]
    shapes: tuple[Shape, ...]
    targets: tuple[Target, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each coefficient: its term, and where one term has several, what sets it apart.

        Facts of an entry and moments are named.
        """
        return tuple(self._name(key) for key in self.keys)

    def _name(self, key: Key) -> str:
        entry = self.table.copies[key.entry]
        moments = [moment for moment, milli in entry.at.items() if milli == key.milli]
        same = [k for k in self.keys if self.table.copies[k.entry].term == entry.term]
        facts = [dict(self.table.copies[place].when.facts) for place in {k.entry for k in same}]
        parts = [
            f"{fact}={'/'.join(str(v) for v in values)}"
            for fact, values in entry.when.facts
            if len({other.get(fact) for other in facts}) > 1
        ]
        if len([k for k in same if k.entry == key.entry]) > 1:
            parts.append("+".join(moments))
        return f"{entry.term}[{'; '.join(parts)}]" if parts else entry.term

    @property
    def prior(self) -> Floats:
        """Copies before the fit."""
        return np.array([key.milli / MILLI for key in self.keys])


Row = dict[Key, float]
Rows = list[tuple[Moment, Row]]


def make_design(sightings: Sequence[Sighting], table: Coefficients) -> Design:
    """Lay out every observed figure of some sightings as rows of bytes per copy."""
    compiler = TermCompiler(table)
    known: dict[tuple[Local, Work], Rows] = {}
    places: dict[tuple[Local, Work, Phase | None, Moment | None, str], int] = {}
    shapes: list[Rows] = []
    targets: list[Target] = []

    def place_of(sighting: Sighting, phase: Phase | None, at: Moment | None, term: str) -> int:
        where = (sighting.local, sighting.work, phase, at, term)
        if where not in places:
            stages = known.get(where[:2])
            if stages is None:
                stages = known[where[:2]] = _stages(sighting, table, compiler)
            rows = _rows_of(stages, table, phase, at, term)
            places[where] = len(shapes) if rows else -1
            if rows:
                shapes.append(rows)
        return places[where]

    for number, sighting in enumerate(sightings):
        for phase, observed in sighting.seen.items():
            place = place_of(sighting, phase, None, "")
            if place >= 0:
                targets.append(Target(number, phase, observed, place))
        for (moment, term), observed in sighting.terms.items():
            place = place_of(sighting, moment.phase, moment, term)
            if place >= 0 and observed > 0:
                targets.append(Target(number, moment.phase, observed, place))
    keys = {key for stages in known.values() for _, row in stages for key in row}
    ordered = sorted(keys, key=lambda key: (key.entry, -key.milli))
    return Design(table, tuple(ordered), tuple(_shape(r, ordered) for r in shapes), tuple(targets))


def _rows_of(
    stages: Rows, table: Coefficients, phase: Phase | None, at: Moment | None, term: str
) -> Rows:
    """Return the rows behind one figure: of a phase, or of one term at one moment."""
    if at is not None:
        alone = {
            key: size
            for key, size in dict(stages).get(at, {}).items()
            if table.copies[key.entry].term == term
        }
        return [(at, alone)] if alone else []
    return [
        (moment, row)
        for moment, row in stages
        if moment.phase is phase or (phase is None and moment.phase in PEAK_PHASES)
    ]


def _shape(found: Rows, ordered: Sequence[Key]) -> Shape:
    at = {key: i for i, key in enumerate(ordered)}
    matrix = np.zeros((len(found), len(ordered)))
    for i, (_, row) in enumerate(found):
        for key, size in row.items():
            matrix[i, at[key]] += size
    return Shape(matrix, tuple(moment for moment, _ in found))


def _stages(sighting: Sighting, table: Coefficients, compiler: TermCompiler) -> Rows:
    """Return each moment's bytes of one copy of every coefficient, at its fullest layer."""
    compiled = compiler.compile(sighting.local)
    figures = Figures(compiled, sighting.work, table.margin_milli, NO_GROWTH)
    entry_of = {
        entry.term: place
        for place, entry in enumerate(table.copies)
        if entry.when.mismatch(sighting.local) is None
    }
    found: Rows = []
    for stage in figures.stages:
        quantities = sighting.work.at(stage[3], sighting.work.rows)
        row = {
            Key(entry_of[live.term.name], live.copies_milli): dot(live.weights, quantities)
            / live.copies_milli
            for live in figures.live(stage)
        }
        found.append((stage[0], row))
    return found
