"""Figures: the bytes that one kind of rank will hold, each worked out when it is first asked for.

Ranks with the same tokens, group, routing and held buffer share one `Figures`. Where every layer
has the same routed rows, a peak is a maximum over a few linear forms (`planner.forms`); else every
layer of every stage is summed.
"""

from collections.abc import Sequence
from typing import NamedTuple

from planner.coefficients import MILLI
from planner.compiled import Compiled, LiveTerm, dot, whole
from planner.folding import Counts, Folding, Form
from planner.forms import PEAK_PHASES, Forms, fullest_layers
from planner.lines import Lines
from planner.moments import Moment, Phase
from planner.units import Bytes, Rows, Tokens
from planner.work import Work

MILLION = MILLI * MILLI
"""Thousandths of bytes times thousandths of a margin, in one byte."""

StageFigure = tuple[Moment, int, int, int]
"""A stage in whole bytes: moment, expected, bound, and the layer at which it is fullest."""

PEAK_MOMENTS = frozenset(moment for moment in Moment if moment.phase in PEAK_PHASES)

NOTHING: StageFigure = (Moment.FORWARD_FLOOR, -1, -1, 0)


class Growth(NamedTuple):
    """Buffers outside PyTorch: padded tokens that the call needs, and the bytes that it adds."""

    tokens: Tokens
    expected: Bytes
    bound: Bytes


class Figures:
    """What one call holds on one kind of rank.

    Parameters
    ----------
    compiled
        Stages of this rank under a table.
    work
        What the call brings.
    margin_milli
        The table's factor on bytes for the bound, in thousandths.
    growth
        What the buffers outside PyTorch grow by.
    call_bytes
        The table's bytes of the bound beside its margin.
    folding
        What the stages are folded for; by default such calls as ``work``.
    """

    __slots__ = (
        "_demand",
        "_folded",
        "_layers",
        "_stages",
        "call_bytes",
        "compiled",
        "folding",
        "growth",
        "margin_milli",
        "work",
    )

    def __init__(
        self,
        compiled: Compiled,
        work: Work,
        margin_milli: int,
        growth: Growth,
        call_bytes: int = 0,
        folding: Folding | None = None,
    ) -> None:
        self.compiled = compiled
        self.work = work
        self.margin_milli = margin_milli
        self.growth = growth
        self.call_bytes = call_bytes
        self.folding = folding
        self._folded: Forms | None = None
        self._stages: tuple[StageFigure, ...] | None = None
        self._layers: tuple[int, ...] = ()
        self._demand: int | None = None

    @property
    def _forms(self) -> Forms | None:
        """The stages folded, where every layer has the same routed rows."""
        if self._folded is None and type(self.work.rows) is int:
            if self.folding is None:
                self.folding = self.compiled.folding(self.work.accumulating, self.margin_milli)
            self._folded = self.compiled.forms(self.folding)
        return self._folded

    def _counts(self, forms: Forms, *, more: bool = False) -> Counts:
        """Return what forms are evaluated for; ``more``: those of the bound."""
        work = self.work
        if forms.folding.even is not None:
            return 1, work[1], work[2]
        rows = work.more_rows if more else work.rows
        return 1, work[1], work[2], rows, work.group_slots, work.head_tokens  # type: ignore[return-value]

    def bound(self, phase: Phase) -> Bytes:
        """Return the bound on the fullest moment of a phase (0: the phase has none)."""
        forms = self._forms
        if forms is None:
            return Bytes(max((s[2] for s in self.stages if s[0].phase is phase), default=0))
        mine = forms.bound.peaks.get(phase)
        return Bytes(self._most(forms, mine)) if mine else Bytes(0)

    def expected(self, phase: Phase) -> Bytes:
        """Return the expected bytes of the fullest moment of a phase (0: the phase has none)."""
        forms = self._forms
        if forms is None:
            return Bytes(max((s[1] for s in self.stages if s[0].phase is phase), default=0))
        if self._stages is not None:
            return Bytes(max([self._stages[place][1] for place in forms.places[phase]], default=0))
        mine = forms.expected.peaks.get(phase, ())
        return Bytes(forms.expected.most(mine, self._counts(forms)))

    @property
    def expected_peak(self) -> Bytes:
        """Expected peak of the call's working set inside PyTorch."""
        forms = self._forms
        if forms is None:
            return max(self.expected(Phase.FORWARD), self.expected(Phase.BACKWARD))
        return Bytes(forms.expected.most(forms.expected.peak, self._counts(forms)))

    @property
    def demand(self) -> int:
        """Bound on the call's working set inside PyTorch, and growth outside it."""
        found = self._demand
        if found is None:
            forms = self._forms
            if forms is None:
                peak: int = max(self.bound(Phase.FORWARD), self.bound(Phase.BACKWARD))
            else:
                peak = self._most(forms, forms.bound.peak)
            found = self._demand = peak + self.growth.bound
        return found

    @property
    def demand_once(self) -> int:
        """`demand`, summed at the layers that may be fullest: cheaper where forms serve once."""
        compiled, work = self.compiled, self.work
        if type(work.rows) is not int:
            return self.demand
        most = 0
        known: dict[int, tuple[int, ...]] = {}
        for moment, total, _, _ in self.compiled.stages:
            if moment.phase not in PEAK_PHASES:
                continue
            for layer in fullest_layers(moment, compiled.layers, compiled.linear_layers):
                if layer not in known:
                    known[layer] = work.at(layer, work.more_rows)
                most = max(most, dot(total, known[layer]))
        return self._with_margin(most) + self.growth.bound

    @property
    def persistent_bound(self) -> Bytes:
        """The part of the bound that a split child keeps until its own backward."""
        forms = self._forms
        if forms is not None:
            return Bytes(self._most(forms, forms.persistent))
        entries = self.work.everywhere(_each(self.work.more_rows, self.compiled.layers))[:-1]
        return Bytes(
            self._with_margin(
                max(
                    (
                        dot(stage.persistent, at)
                        for stage in self.compiled.stages
                        if stage.moment.phase is not Phase.BETWEEN
                        for at in entries
                    ),
                    default=0,
                )
            )
        )

    @property
    def stages(self) -> tuple[StageFigure, ...]:
        """Every stage that this call passes through, in the order of its moments."""
        if self._stages is None:
            forms = self._forms
            tells = forms is not None and self.work.tokens  # without any, no layer is fullest
            if forms is not None and tells and (self.work.rows or forms.folding.even):
                self._stages = self._alike(forms)
            else:
                self._stages = self._layer_by_layer()
        return self._stages

    @property
    def peak(self) -> StageFigure:
        """The stage of the expected peak, the first of those that are as full."""
        found = NOTHING
        for stage in self.stages:
            if stage[1] > found[1] and stage[0] in PEAK_MOMENTS:
                found = stage
        return found

    def terms(self, stage: StageFigure) -> dict[str, Bytes]:
        """Return the expected bytes of every live term of a stage."""
        moment, _, _, layer = stage
        forms = self._forms
        if forms is not None:
            program = self.compiled.program_at(forms.folding, moment, layer)
            counts = self._counts(forms)
        else:
            program = self.compiled.program_at(None, moment)
            counts = self.work.at(layer, self.work.rows)
        return dict(zip(program.terms, program.bytes(counts), strict=True))

    @property
    def lines(self) -> Lines:
        """Expected bytes of every term at every stage at which it is live."""
        stages = self.stages
        forms = self._forms
        if forms is not None:
            program = self.compiled.program(forms, self._layers)
            return Lines((program,), program.bytes(self._counts(forms)))
        programs = tuple([self.compiled.program_at(None, stage[0]) for stage in stages])
        sizes: list[Bytes] = []
        for program, stage in zip(programs, stages, strict=True):
            sizes += program.bytes(self.work.at(stage[3], self.work.rows))
        return Lines(programs, tuple(sizes))

    def live(self, stage: StageFigure) -> Sequence[LiveTerm]:
        """Return the live terms of a stage."""
        return self.compiled.live(stage[0])

    @property
    def routed_rows(self) -> tuple[Rows, ...]:
        """Expected routed rows of each layer."""
        return tuple(Rows(rows) for rows in _each(self.work.rows, self.compiled.layers))

    def _most(self, forms: Forms, mine: Sequence[Form]) -> int:
        """Return the bound on the highest of some forms of its side."""
        return forms.bound.most(mine, self._counts(forms, more=True)) + self.call_bytes

    def _with_margin(self, milli: int) -> int:
        return -(-milli * self.margin_milli // MILLION) + self.call_bytes

    def _alike(self, forms: Forms) -> tuple[StageFigure, ...]:
        """Return every stage where all layers have the same routed rows."""
        more = self.call_bytes
        expected, layers = forms.expected.stages(self._counts(forms))
        bound, _ = forms.bound.stages(self._counts(forms, more=True))
        if more:
            bound = [value + more for value in bound]
        self._layers = layers
        return tuple(zip(forms.moments, expected, bound, layers, strict=True))

    def _layer_by_layer(self) -> tuple[StageFigure, ...]:
        """Return every stage by the sum of its terms at every layer."""
        layers, work = self.compiled.layers, self.work
        expected = work.everywhere(_each(work.rows, layers))
        more = work.everywhere(_each(work.more_rows, layers))
        found: list[StageFigure] = []
        for stage in self.compiled.stages:
            at = (layers,) if stage.moment is Moment.BETWEEN_CALLS else range(layers)
            sums = [dot(stage.total, expected[layer]) for layer in at]
            fullest = max(sums)
            high = self._with_margin(max(dot(stage.total, more[layer]) for layer in at))
            found.append((stage.moment, whole(fullest), high, at[sums.index(fullest)]))
        self._layers = tuple([stage[3] for stage in found])
        return tuple(found)


def _each(rows: int | tuple[int, ...], layers: int) -> tuple[int, ...]:
    return (rows,) * layers if isinstance(rows, int) else rows
