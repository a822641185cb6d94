"""Replay: a recorded decision taken again, and what moved between the two."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from planner.coefficients import Coefficients
from planner.plan_report import PlanReport


@dataclass(frozen=True, slots=True)
class Moved:
    """A term whose bytes differ, at the rank and child where they differ most.

    Parameters
    ----------
    before, after
        Expected bytes as recorded and today; 0: the term is not there.
    """

    term: str
    moment: str
    child: int
    rank: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Replay:
    """A report beside the same decision taken today.

    Parameters
    ----------
    table_changed
        Whether the table of that name holds other figures than when the report was written.
    moved
        Terms that differ, largest change first.
    """

    recorded: PlanReport
    today: PlanReport
    table_changed: bool
    moved: tuple[Moved, ...]

    @property
    def same(self) -> bool:
        """Whether today's decision is the recorded one, to the byte."""
        return self.recorded.decision == self.today.decision

    @property
    def verdicts(self) -> tuple[str, str]:
        """The verdict with its number of children, as recorded and today."""
        return _verdict(self.recorded.decision), _verdict(self.today.decision)


def replay(report: PlanReport, coefficients: Coefficients | str | None = None) -> Replay:
    """Take a recorded decision again.

    Parameters
    ----------
    coefficients
        Another table than today's of the recorded name.

    Raises
    ------
    ReportError
        When today's code cannot take the recorded inputs.
    """
    today = report.again(coefficients)
    before, after = _terms(report.decision), _terms(today.decision)
    largest: dict[tuple[str, str], Moved] = {}
    for place in before.keys() | after.keys():
        child, rank, moment, term = place
        moved = Moved(term, moment, child, rank, before.get(place, 0), after.get(place, 0))
        if moved.before == moved.after:
            continue
        best = largest.get((moment, term))
        if best is None or _weight(moved) > _weight(best):
            largest[moment, term] = moved
    old, new = (r.inputs["coefficients"]["digest"] for r in (report, today))
    return Replay(
        recorded=report,
        today=today,
        table_changed=old != new,
        moved=tuple(sorted(largest.values(), key=_weight, reverse=True)),
    )


def _weight(moved: Moved) -> tuple[int, str, str, int, int]:
    return abs(moved.after - moved.before), moved.term, moved.moment, -moved.child, -moved.rank


def _terms(decision: Mapping[str, Any]) -> dict[tuple[int, int, str, str], int]:
    """Return the bytes of every child, rank, moment and term."""
    return dict(_each_term(decision))


def _each_term(decision: Mapping[str, Any]) -> Iterator[tuple[tuple[int, int, str, str], int]]:
    for number, child in enumerate(decision["children"]):
        for rank, kind in enumerate(child["of_rank"]):
            for moment, terms in child["kinds"][kind]["terms"].items():
                for term, size in terms.items():
                    yield (number, rank, moment, term), size


def _verdict(decision: Mapping[str, Any]) -> str:
    children = len(decision["children"])
    return f"{decision['verdict']} in {children} children" if children > 1 else decision["verdict"]
