"""Everything of a price that does not depend on the batch, folded once per topology."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from planner.coefficients import MILLI, Coefficients, Copies, Unpriced
from planner.errors import TableError
from planner.facts import FACTS, hold, tests_of
from planner.folding import Even, Folding, Weights
from planner.forms import Forms, fold_stages
from planner.fullest import may_be_fullest
from planner.lines import LineProgram
from planner.local import Local
from planner.moments import Moment
from planner.size import ALIKE, QUANTITIES, units
from planner.term import Term
from planner.terms import TERMS

COUNT = len(QUANTITIES)


class LiveTerm(NamedTuple):
    """A term that is live at a moment: its copies in thousandths and its weights."""

    term: Term
    copies_milli: int
    weights: Weights


class Stage(NamedTuple):
    """A moment, compiled: the sum of its live terms, and each of them."""

    moment: Moment
    total: Weights
    persistent: Weights
    live: tuple[LiveTerm, ...]


class Compiled:
    """The stages of one rank under one table, and what the table leaves out.

    Parameters
    ----------
    local
        What the rank holds.
    """

    __slots__ = (
        "_foldings",
        "_forms",
        "_programs",
        "_say_unpriced",
        "_unpriced",
        "layers",
        "linear_layers",
        "local",
        "moments",
        "stages",
        "unpriced_parts",
    )

    def __init__(
        self,
        stages: tuple[Stage, ...],
        unpriced: Callable[[], tuple[Unpriced, ...]],
        unpriced_parts: int,
        local: Local,
    ) -> None:
        self.stages = stages
        self.unpriced_parts = unpriced_parts
        self._say_unpriced = unpriced
        self._unpriced: tuple[Unpriced, ...] | None = None
        self.local = local
        self.layers = local.layers
        self.linear_layers = local.linear_layers
        self.moments = tuple(stage.moment for stage in stages)
        self._foldings: dict[tuple[bool, int, Even | None], Folding] = {}
        self._forms: dict[Folding, Forms] = {}
        self._programs: dict[tuple[object, ...], LineProgram] = {}

    @property
    def unpriced(self) -> tuple[Unpriced, ...]:
        """What this rank will hold and the table does not price; worded when first asked for."""
        if self._unpriced is None:
            self._unpriced = self._say_unpriced()
        return self._unpriced

    def folding(self, accumulating: bool, margin_milli: int, even: Even | None = None) -> Folding:
        """Return the one folding for this kind of call on this rank."""
        key = accumulating, margin_milli, even
        found = self._foldings.get(key)
        if found is None:
            forward_only = not self.local.gradients
            found = self._foldings[key] = Folding(
                self.layers, self.linear_layers, accumulating, forward_only, margin_milli, even
            )
        return found

    def forms(self, folding: Folding) -> Forms:
        """Return the stages folded for layers of the same routed rows; made when first asked."""
        found = self._forms.get(folding)
        if found is None:
            stages = [(stage.moment, stage.total, stage.persistent) for stage in self.stages]
            found = self._forms[folding] = fold_stages(stages, folding)
        return found

    def program(self, forms: Forms, layers: tuple[int, ...]) -> LineProgram:
        """Return what makes the lines of all stages, each at its layer, of a call's counts."""
        key = forms.folding, layers
        found = self._programs.get(key)
        if found is None:
            at = zip(forms.moments, layers, strict=True)
            lines = [line for moment, layer in at for line in self._lines(key[0], moment, layer)]
            found = self._programs[key] = LineProgram(lines)
        return found

    def program_at(self, folding: Folding | None, moment: Moment, layer: int = 0) -> LineProgram:
        """Return the same of one stage; without a folding of the quantities of any layer."""
        key = folding, moment, layer
        found = self._programs.get(key)
        if found is None:
            found = self._programs[key] = LineProgram(self._lines(*key))
        return found

    def _lines(
        self, folding: Folding | None, moment: Moment, layer: int
    ) -> list[tuple[str, Moment, int, Weights]]:
        return [
            (term.name, moment, copies, folding.sparse(weights, layer) if folding else weights)
            for term, copies, weights in self.live(moment)
        ]

    def live(self, moment: Moment) -> tuple[LiveTerm, ...]:
        """Return the live terms of a stage."""
        return self.stages[self.moments.index(moment)].live


At = Mapping[Moment, int]
Chosen = tuple[tuple[Term, At | None], ...]
Here = tuple[Chosen, tuple[Unpriced, ...]]


class TermCompiler:
    """Compiles rank after rank under one table; what depends on facts alone is looked up once.

    Raises
    ------
    TableError
        When the table names a term that the catalogue lacks.
    """

    def __init__(self, table: Coefficients) -> None:
        known = {term.name for term in TERMS}
        self.table = table
        self._entries: dict[str, list[Copies]] = {name: [] for name in known}
        self._chosen: dict[tuple[object, ...], Here] = {}
        self._compiled: dict[Local, Compiled] = {}
        for entry in table.copies:
            if entry.term not in known:
                raise TableError(
                    f"{table.name} has copies of {entry.term!r}, which no term declares; "
                    f"declared: {', '.join(sorted(known))}"
                )
            self._entries[entry.term].append(entry)
        self._tested = [
            (
                term,
                [
                    ({moment: n for moment, n in entry.at.items() if n}, tests_of(entry.when))
                    for entry in self._entries[term.name]
                ],
            )
            for term in TERMS
            if term.family not in table.elsewhere
        ]

    def compile(self, local: Local) -> Compiled:
        """Fold shapes and copies for one rank; ranks that hold the same are folded once.

        Raises
        ------
        TableError
            When two entries of the table cover one term here.
        """
        found = self._compiled.get(local)
        if found is None:
            found = self._compiled[local] = self._fold(local)
        return found

    def _fold(self, local: Local) -> Compiled:
        facts = tuple([fact(local) for fact in FACTS.values()])
        here = self._chosen.get(facts)
        if here is None:
            here = self._chosen[facts] = self._choose(local, facts)
        chosen, notes = here
        live: dict[Moment, list[LiveTerm]] = {}
        missing: list[Term] = []
        for term, at in chosen:
            if not term.when(local):
                continue
            if at is None:
                missing.append(term)
                continue
            for moment, one in _live_terms(term, at, local):
                live.setdefault(moment, []).append(one)
        looked_at = [m for m in Moment if m in live and may_be_fullest(m, local)]
        stages = tuple([_stage(moment, live[moment]) for moment in looked_at])
        if not stages:  # nothing of this step is in the table, and every part is said unpriced
            stages = (Stage(Moment.FORWARD_FLOOR, (), (), ()),)

        def unpriced() -> tuple[Unpriced, ...]:
            return (*notes, *[self._unpriced(term, local) for term in missing])

        return Compiled(stages, unpriced, len(notes) + len(missing), local)

    def _choose(self, local: Local, facts: tuple[object, ...]) -> Here:
        """Choose the entry of every term that holds under a rank's facts."""
        notes = [note for note, when in self.table.notes if when.mismatch(local) is None]
        if local.dispatcher == "deepep" and not local.on_device:
            why = "DeepEP's buffers lie on a CUDA device; set Step.device to cuda to count them"
            notes.append(Unpriced("buffers.deepep", why))
        chosen: list[tuple[Term, At | None]] = []
        for term, entries in self._tested:
            here = [at for at, tests in entries if hold(tests, facts)]
            if len(here) > 1:
                raise TableError(
                    f"{self.table.name} has {len(here)} entries for {term.name} that hold here"
                )
            if not here:
                chosen.append((term, None))
            elif here[0]:  # else it is never live
                chosen.append((term, here[0]))
        return tuple(chosen), tuple(notes)

    def _unpriced(self, term: Term, local: Local) -> Unpriced:
        entries = self._entries[term.name]
        reasons = dict.fromkeys(str(entry.when.mismatch(local)) for entry in entries)
        why = "priced " + "; or ".join(reasons) if reasons else "the table has no copies of it"
        return Unpriced(term.name, f"{why} ({self.table.name})")


def _live_terms(term: Term, at: At, local: Local) -> Iterator[tuple[Moment, LiveTerm]]:
    """Yield a term's copies at each moment; one serves all moments that are alike."""
    size = term.size(local)
    if min(size) < 0:
        raise TableError(f"a copy of {term.name} has negative bytes: {size}")
    made: dict[tuple[int, Moment], LiveTerm] = {}
    for moment, copies in at.items():
        kind = copies, ALIKE[moment]
        one = made.get(kind)
        if one is None:
            weights = tuple([(index, copies * unit) for index, unit in units(size, moment)])
            one = made[kind] = LiveTerm(term, copies, weights)
        yield moment, one


def compile_terms(local: Local, table: Coefficients) -> Compiled:
    """Fold shapes and copies for one rank: `TermCompiler.compile` for a single one."""
    return TermCompiler(table).compile(local)


def _stage(moment: Moment, live: list[LiveTerm]) -> Stage:
    total, persistent = [0] * COUNT, [0] * COUNT
    for term, _, weights in live:
        for index, value in weights:
            total[index] += value
            if term.persists:
                persistent[index] += value
    return Stage(moment, _nonzero(total), _nonzero(persistent), tuple(live))


def _nonzero(sums: list[int]) -> Weights:
    return tuple([(index, value) for index, value in enumerate(sums) if value])


def dot(weights: Weights, quantities: tuple[int, ...]) -> int:
    """Thousandths of bytes for the quantities of one layer."""
    total = 0
    for index, value in weights:
        total += value * quantities[index]
    return total


def whole(milli: int) -> int:
    """Thousandths to whole bytes, rounded up."""
    return -(-milli // MILLI)
