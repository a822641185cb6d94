"""Everything of a price that does not depend on the batch, folded once per topology."""

from collections.abc import Mapping
from dataclasses import astuple, dataclass

from planner.coefficients import MILLI, Coefficients, Unpriced
from planner.errors import TableError
from planner.local import Local
from planner.moments import Moment
from planner.size import QUANTITIES, Size
from planner.term import Term
from planner.terms import TERMS

Weights = tuple[tuple[int, int], ...]
"""(index into the quantities, thousandths of a byte per unit), non-zero entries only."""


@dataclass(frozen=True, slots=True)
class LiveTerm:
    """A term that is live at a moment: its copies in thousandths and its weights."""

    term: Term
    copies_milli: int
    weights: Weights


@dataclass(frozen=True, slots=True)
class Stage:
    """A moment, compiled: the sum of its live terms, and each of them."""

    moment: Moment
    total: Weights
    persistent: Weights
    live: tuple[LiveTerm, ...]


@dataclass(frozen=True, slots=True)
class Compiled:
    """The stages of one rank under one table, and what the table leaves out."""

    stages: tuple[Stage, ...]
    unpriced: tuple[Unpriced, ...]


def compile_terms(local: Local, table: Coefficients) -> Compiled:
    """Fold shapes and copies for one rank.

    Raises
    ------
    TableError
        When the table names a term that the catalogue lacks, or two entries cover one term here.
    """
    known = {term.name for term in TERMS}
    for entry in table.copies:
        if entry.term not in known:
            raise TableError(
                f"{table.name} has copies of {entry.term!r}, which no term declares; "
                f"declared: {', '.join(sorted(known))}"
            )
    live: dict[Moment, list[LiveTerm]] = {}
    unpriced = [note for note, when in table.notes if when.mismatch(local) is None]
    if local.dispatcher == "deepep":
        unpriced.append(Unpriced("buffers.deepep", "no formula of DeepEP's own buffers yet"))
    for term in TERMS:
        if not term.when(local):
            continue
        at = _copies_here(term, local, table)
        if isinstance(at, Unpriced):
            unpriced.append(at)
            continue
        size = term.size(local)
        for moment, copies in at.items():
            if copies:
                live.setdefault(moment, []).append(
                    LiveTerm(term, copies, _weights([(copies, size)]))
                )
    stages = tuple(_stage(moment, live[moment]) for moment in Moment if moment in live)
    return Compiled(stages, tuple(unpriced))


def _copies_here(term: Term, local: Local, table: Coefficients) -> Mapping[Moment, int] | Unpriced:
    entries = [entry for entry in table.copies if entry.term == term.name]
    here = [entry for entry in entries if entry.when.mismatch(local) is None]
    if len(here) > 1:
        raise TableError(f"{table.name} has {len(here)} entries for {term.name} that hold here")
    if here:
        return here[0].at
    reasons = dict.fromkeys(str(entry.when.mismatch(local)) for entry in entries)
    why = "priced " + "; or ".join(reasons) if reasons else "the table has no copies of it"
    return Unpriced(term.name, f"{why} ({table.name})")


def _weights(parts: list[tuple[int, Size]]) -> Weights:
    sums = [0] * len(QUANTITIES)
    for copies, size in parts:
        for index, value in enumerate(astuple(size)):
            sums[index] += copies * value
    return tuple((index, value) for index, value in enumerate(sums) if value)


def _stage(moment: Moment, live: list[LiveTerm]) -> Stage:
    def total(terms: list[LiveTerm]) -> Weights:
        sums = [0] * len(QUANTITIES)
        for term in terms:
            for index, value in term.weights:
                sums[index] += value
        return tuple((index, value) for index, value in enumerate(sums) if value)

    return Stage(moment, total(live), total([t for t in live if t.term.persists]), tuple(live))


def dot(weights: Weights, quantities: tuple[int, ...]) -> int:
    """Thousandths of bytes for the quantities of one layer."""
    total = 0
    for index, value in weights:
        total += value * quantities[index]
    return total


def whole(milli: int) -> int:
    """Thousandths to whole bytes, rounded up."""
    return -(-milli // MILLI)
