"""Design: observed figures over bytes of one copy of every coefficient of a table.

A coefficient is one entry of a table and the moments at which it has the same copies. A peak has a
row for every moment that may be the fullest; which it is depends on the copies. A term at a moment
has one coefficient alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.regress.pricing import Key, Priced, Pricing
from pipeline.regress.rows import Bools, Floats, Ints, Rows
from pipeline.regress.sighting import Sightings, Terms
from planner.coefficients import MILLI, Coefficients
from planner.forms import PEAK_PHASES
from planner.moments import Phase

LIVELY = 0.7
"""A moment with less than this of the fullest one's bytes is not taken for a peak."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Peaks:
    """Figures of phases; the rows of each, one a moment, lie one behind the other.

    Parameters
    ----------
    first
        (figures,) place of a figure's first row.
    phase, is_whole
        (figures,) ``None`` for the peak of a whole call, and whether it is that.
    """

    sighting: Ints
    phase: tuple[Phase | None, ...]
    is_whole: Bools
    observed: Floats
    first: Ints
    rows: Floats

    def fullest(self, copies: Floats) -> Ints:
        """Return the row of every figure that is the fullest under these copies."""
        sizes = self.rows @ copies
        highest = np.maximum.reduceat(sizes, self.first)
        owner = np.repeat(np.arange(len(self.first)), np.diff([*self.first, len(sizes)]))
        at = np.flatnonzero(sizes >= highest[owner])
        _, earliest = np.unique(owner[at], return_index=True)
        return at[earliest]

    def expected(self, copies: Floats) -> Floats:
        """Return the expected bytes of every figure."""
        return np.maximum.reduceat(self.rows @ copies, self.first)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Design:
    """All figures over the coefficients of one table: those of phases, then those of terms.

    Parameters
    ----------
    names
        Of each coefficient: its term, and where one term has several, facts of its entry and
        moments that set it apart.
    term_sighting, term_key, term_size, term_observed
        Of each term's figure: its sighting, its coefficient, bytes of one copy, bytes observed.
    """

    table: Coefficients
    keys: tuple[Key, ...]
    names: tuple[str, ...]
    peaks: Peaks
    term_sighting: Ints
    term_key: Ints
    term_size: Floats
    term_observed: Floats

    @property
    def observed(self) -> Floats:
        """Bytes of every figure."""
        return np.concatenate([self.peaks.observed, self.term_observed])

    @property
    def sighting(self) -> Ints:
        """The sighting that every figure is of."""
        return np.concatenate([self.peaks.sighting, self.term_sighting])

    @property
    def whole(self) -> Ints:
        """Places of the figures that are peaks of whole calls."""
        return np.flatnonzero(self.peaks.is_whole)

    def at(self, chosen: Ints) -> Rows:
        """Return the rows of all figures, those of phases at the moments chosen."""
        return Rows(self.peaks.rows[chosen], self.term_key, self.term_size)

    @property
    def prior(self) -> Floats:
        """Copies before the fit."""
        return np.array([key.milli / MILLI for key in self.keys])


def make_design(sightings: Sightings, table: Coefficients) -> Design:
    """Lay out every observed figure of some sightings over the bytes of one copy."""
    pricing = Pricing(sightings.kinds, table)
    prior = np.array([key.milli / MILLI for key in pricing.keys])
    peaks: list[Peaks] = []
    terms = [(_NONE, _NONE, np.zeros(0), np.zeros(0))]
    kind_of_term = sightings.kind[sightings.terms.sighting]
    for part in pricing.parts(sightings):
        sizes = part.rows @ prior
        for phase, observed in sightings.seen.items():
            peaks += _peaks(part, sizes, phase, observed[part.sighting])
        of_kind = np.flatnonzero(kind_of_term == sightings.kind[part.sighting[0]])
        terms.append(_terms(part, sightings.terms, of_kind))
    columns = [np.concatenate(column) for column in zip(*terms, strict=True)]
    return Design(
        table=table,
        keys=pricing.keys,
        names=tuple(_name(key, pricing.keys, table) for key in pricing.keys),
        peaks=_joined(peaks, len(prior)),
        term_sighting=columns[0],
        term_key=columns[1],
        term_size=columns[2],
        term_observed=columns[3],
    )


def _name(key: Key, keys: Sequence[Key], table: Coefficients) -> str:
    entry = table.copies[key.entry]
    moments = [moment for moment, milli in entry.at.items() if milli == key.milli]
    same = [k for k in keys if table.copies[k.entry].term == entry.term]
    facts = [dict(table.copies[place].when.facts) for place in {k.entry for k in same}]
    parts = [
        f"{fact}={'/'.join(str(v) for v in values)}"
        for fact, values in entry.when.facts
        if len({other.get(fact) for other in facts}) > 1
    ]
    if len([k for k in same if k.entry == key.entry]) > 1:
        parts.append("+".join(moments))
    return f"{entry.term}[{'; '.join(parts)}]" if parts else entry.term


_NONE: Ints = np.zeros(0, dtype=np.int64)


def _peaks(part: Priced, sizes: Floats, phase: Phase | None, observed: Floats) -> list[Peaks]:
    """Lay out one phase's figures of a part, with the moments that may be its fullest."""
    phases = PEAK_PHASES if phase is None else (phase,)
    of_phase = [i for i, moment in enumerate(part.moments) if moment.phase in phases]
    seen = np.flatnonzero(observed > 0)
    if not of_phase or not len(seen):
        return []
    sizes = sizes[seen][:, of_phase]
    lively = sizes >= LIVELY * sizes.max(axis=1, keepdims=True)
    each, moment = np.nonzero(lively)
    counts = lively.sum(axis=1)
    return [
        Peaks(
            sighting=part.sighting[seen],
            phase=(phase,) * len(seen),
            is_whole=np.full(len(seen), phase is None),
            observed=observed[seen],
            first=np.cumsum(counts) - counts,
            rows=part.rows[seen[each], np.array(of_phase)[moment]],
        )
    ]


def _joined(parts: list[Peaks], width: int) -> Peaks:
    starts = np.cumsum([0, *(len(part.rows) for part in parts)])
    return Peaks(
        sighting=np.concatenate([_NONE, *(part.sighting for part in parts)]),
        phase=tuple([phase for part in parts for phase in part.phase]),
        is_whole=np.concatenate([np.zeros(0, bool), *(part.is_whole for part in parts)]),
        observed=np.concatenate([np.zeros(0), *(part.observed for part in parts)]),
        first=np.concatenate(
            [_NONE, *(p.first + start for p, start in zip(parts, starts, strict=False))]
        ),
        rows=np.concatenate([np.zeros((0, width)), *(part.rows for part in parts)]),
    )


def _terms(part: Priced, terms: Terms, of_kind: Ints) -> tuple[Ints, Ints, Floats, Floats]:
    """Lay out the figures of terms that a table has at their moment, of some sightings."""
    low, high = np.searchsorted(terms.sighting[of_kind], [part.sighting[0], part.sighting[-1] + 1])
    place = of_kind[low:high]
    key = np.array([part.keys.get(kind, -1) for kind in terms.kinds], dtype=np.int64)
    at = {moment: number for number, moment in enumerate(part.moments)}
    moment = np.array([at.get(moment, -1) for moment, _ in terms.kinds], dtype=np.int64)
    if not len(place):
        return _NONE, _NONE, np.zeros(0), np.zeros(0)
    kind = terms.kind[place]
    within = np.searchsorted(part.sighting, terms.sighting[place])
    size = part.rows[within, moment[kind], key[kind]]
    use = (key[kind] >= 0) & (moment[kind] >= 0) & (size > 0) & (terms.observed[place] > 0)
    return (
        terms.sighting[place][use],
        key[kind][use],
        size[use],
        terms.observed[place][use],
    )
