"""Sightings: what was seen of many calls and ranks, in columns.

A `Sighting` is one call on one rank as a reader makes it; `Sightings` holds any number of them in
arrays, so that a hundred thousand fit into memory and are priced together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import numpy as np

from pipeline.regress.rows import Floats, Ints
from planner.local import Local
from planner.moments import Moment, Phase
from planner.work import Work

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sighting:
    """One call on one rank.

    Parameters
    ----------
    facts
        What groups sightings: model, size, topology, class.
    cell
        What calls of one run share.
    work, rows
        Its counts, and the routed rows that arrived: at each layer, or at all alike.
    seen
        Bytes observed: the fullest moment of a phase; of the whole call under ``None``.
    at, terms
        Bytes observed of each term, and the moment, where a ledger saw them.
    beside
        Figures that copies do not make: planned and observed bytes.
    arrived
        Most rows that arrived at a layer: over those expected there, and over an even share.
    """

    label: str
    facts: Mapping[str, str]
    local: Local
    work: Work
    rows: int | Sequence[int]
    seen: Mapping[Phase | None, int]
    cell: str = ""
    at: Moment | None = None
    terms: Mapping[str, int] = field(default_factory=dict)
    beside: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    arrived: tuple[float, float] | None = None


class Kind(NamedTuple):
    """What sightings share: widths on the rank, counts other than routed rows, and facts."""

    local: Local
    work: Work
    facts: tuple[tuple[str, str], ...]


class Codes(NamedTuple):
    """A column of names: each sighting's place in a list of names."""

    names: tuple[str, ...]
    code: Ints

    def at(self, places: Ints) -> "Codes":
        """Return the codes of some places."""
        return Codes(self.names, self.code[places])


class Terms(NamedTuple):
    """Bytes of terms at moments: the sighting, the place in ``kinds``, and the bytes of each."""

    kinds: tuple[tuple[Moment, str], ...]
    sighting: Ints
    kind: Ints
    observed: Floats


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sightings:
    """Many sightings, in columns; ``nan`` where a figure was not seen.

    Parameters
    ----------
    rows
        (sightings, layers) routed rows that arrived; zero beyond a sighting's own layers.
    beside
        (sightings, 2) planned and observed bytes of each figure.
    arrived
        (sightings, 2) as `Sighting.arrived`.
    """

    labels: tuple[str, ...]
    kinds: tuple[Kind, ...]
    kind: Ints
    rows: Ints
    cell: Codes
    seen: Mapping[Phase | None, Floats]
    terms: Terms
    beside: Mapping[str, Floats]
    arrived: Floats

    def __len__(self) -> int:
        return len(self.labels)

    def fact(self, name: str) -> Codes:
        """Return one fact of each; an empty name where it is not known."""
        return _codes([dict(kind.facts).get(name, "") for kind in self.kinds]).at(self.kind)

    @property
    def tokens(self) -> Ints:
        """Local tokens of each."""
        return np.array([kind.work.tokens for kind in self.kinds])[self.kind]

    @property
    def observed(self) -> Floats:
        """Peak of each whole call, bytes."""
        return self.seen[None]


def gather(sightings: Sequence[Sighting]) -> Sightings:
    """Lay sightings out in columns; those that share an object's identity are looked up once."""
    count = len(sightings)
    kinds: dict[Kind, int] = {}
    known: dict[tuple[int, int, int], int] = {}
    kind = np.empty(count, dtype=np.int64)
    rows = np.zeros((count, max((s.work.layers for s in sightings), default=0)), dtype=np.int64)
    terms: dict[tuple[Moment, str], int] = {}
    named: dict[tuple[Moment, tuple[str, ...]], list[int]] = {}
    term_kind: list[int] = []
    term_bytes: list[int] = []
    for i, one in enumerate(sightings):
        same = id(one.local), id(one.work), id(one.facts)
        if same not in known:
            work = one.work._replace(rows=0, more_rows=0)
            like = Kind(one.local, work, tuple(sorted(one.facts.items())))
            known[same] = kinds.setdefault(like, len(kinds))
        kind[i] = known[same]
        rows[i, : one.work.layers] = one.rows
        if one.at is not None:
            names = one.at, tuple(one.terms)
            if names not in named:
                named[names] = [terms.setdefault((one.at, n), len(terms)) for n in one.terms]
            term_kind += named[names]
            term_bytes += one.terms.values()
    held = [0 if one.at is None else len(one.terms) for one in sightings]
    nothing = (np.nan, np.nan)
    return Sightings(
        labels=tuple([one.label for one in sightings]),
        kinds=tuple(kinds),
        kind=kind,
        rows=rows,
        cell=_codes([one.cell for one in sightings]),
        seen={
            phase: np.array([one.seen.get(phase, np.nan) for one in sightings], dtype=float)
            for phase in dict.fromkeys(phase for one in sightings for phase in one.seen)
        },
        terms=Terms(
            tuple(terms),
            np.repeat(np.arange(count), held),
            _ints(term_kind),
            np.array(term_bytes, float),
        ),
        beside={
            name: np.array([one.beside.get(name, nothing) for one in sightings], dtype=float)
            for name in dict.fromkeys(name for one in sightings for name in one.beside)
        },
        arrived=np.array([one.arrived or nothing for one in sightings], float).reshape(-1, 2),
    )


def join(parts: Sequence[Sightings]) -> Sightings:
    """Put sightings that were laid out in parts, one or more, into one."""
    if len(parts) == 1:
        return parts[0]
    kinds, kind = _renumbered([(part.kinds, part.kind) for part in parts])
    terms, term_kind = _renumbered([(part.terms.kinds, part.terms.kind) for part in parts])
    starts = np.cumsum([0, *map(len, parts)])
    wide = max(part.rows.shape[1] for part in parts)
    return Sightings(
        labels=tuple([label for part in parts for label in part.labels]),
        kinds=tuple(kinds),
        kind=kind,
        rows=np.concatenate(
            [np.pad(part.rows, ((0, 0), (0, wide - part.rows.shape[1]))) for part in parts]
        ),
        cell=Codes(*_renumbered([part.cell for part in parts])),
        seen={
            phase: np.concatenate([p.seen.get(phase, np.full(len(p), np.nan)) for p in parts])
            for phase in dict.fromkeys(phase for part in parts for phase in part.seen)
        },
        terms=Terms(
            terms,
            np.concatenate(
                [part.terms.sighting + start for part, start in zip(parts, starts, strict=False)]
            ),
            term_kind,
            np.concatenate([part.terms.observed for part in parts]),
        ),
        beside={
            name: np.concatenate([p.beside.get(name, np.full((len(p), 2), np.nan)) for p in parts])
            for name in dict.fromkeys(name for part in parts for name in part.beside)
        },
        arrived=np.concatenate([part.arrived for part in parts]),
    )


def select(sightings: Sightings, places: Ints) -> Sightings:
    """Return some of many sightings, in ascending order of their places."""
    old = sightings.terms
    mine = np.isin(old.sighting, places)
    used, kind = np.unique(sightings.kind[places], return_inverse=True)
    return replace(
        sightings,
        labels=tuple([sightings.labels[place] for place in places]),
        kinds=tuple([sightings.kinds[place] for place in used]),
        kind=kind,
        rows=sightings.rows[places],
        cell=sightings.cell.at(places),
        seen={phase: seen[places] for phase, seen in sightings.seen.items()},
        terms=Terms(
            old.kinds,
            np.searchsorted(places, old.sighting[mine]),
            old.kind[mine],
            old.observed[mine],
        ),
        beside={name: figures[places] for name, figures in sightings.beside.items()},
        arrived=sightings.arrived[places],
    )


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _codes(names: Sequence[str]) -> Codes:
    known: dict[str, int] = {}
    code = _ints([known.setdefault(name, len(known)) for name in names])
    return Codes(tuple(known), code)


def _renumbered(columns: Sequence[tuple[tuple[T, ...], Ints]]) -> tuple[tuple[T, ...], Ints]:
    """Return names of all columns, each once, and the codes in them one behind the other."""
    known: dict[T, int] = {}
    codes = []
    for names, code in columns:
        places = _ints([known.setdefault(name, len(known)) for name in names])
        codes.append(places[code] if len(names) else code)
    return tuple(known), np.concatenate(codes)
