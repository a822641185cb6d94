"""Figures: the bytes that one kind of rank will hold, each worked out when it is first asked for.

Ranks with the same tokens, group, routing and held buffer share one `Figures`. Where every layer
has the same routed rows, a peak is a maximum over a few linear forms (`planner.forms`); else every
layer of every stage is summed.
"""

from collections.abc import Sequence
from typing import NamedTuple

from planner.coefficients import MILLI
from planner.compiled import Compiled, LiveTerm, dot, whole
from planner.forms import PEAK_PHASES, Form, Forms, fullest_layers
from planner.moments import Moment, Phase
from planner.units import Bytes, Rows, Tokens
from planner.work import Work

MILLION = MILLI * MILLI
"""Thousandths of bytes times thousandths of a margin, in one byte."""

StageFigure = tuple[Moment, int, int, int]
"""A stage in whole bytes: moment, expected, bound, and the layer at which it is fullest."""

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
    """

    __slots__ = (
        "_bounds",
        "_demand",
        "_folded",
        "_peak",
        "_stages",
        "call_bytes",
        "compiled",
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
    ) -> None:
        self.call_bytes = call_bytes
        self.compiled = compiled
        self.work = work
        self.margin_milli = margin_milli
        self.growth = growth
        self._folded: Forms | None = None
        self._bounds: dict[Phase, int] = {}
        self._stages: tuple[StageFigure, ...] | None = None
        self._peak = NOTHING
        self._demand: int | None = None

    @property
    def _forms(self) -> Forms | None:
        """The stages folded, where every layer has the same routed rows."""
        if self._folded is None and type(self.work.rows) is int:
            self._folded = self.compiled.forms(self.work.accumulating, self.work.forward_only)
        return self._folded

    def bound(self, phase: Phase) -> Bytes:
        """Return the bound on the fullest moment of a phase (0: the phase has none)."""
        found = self._bounds.get(phase)
        if found is None:
            if self._forms is None:
                found = max((s[2] for s in self.stages if s[0].phase is phase), default=0)
            else:
                forms = self._forms.peaks.get(phase, ())
                fullest = self._fullest(forms, self.work.more_rows)
                found = self._with_margin(fullest) if forms else 0
            self._bounds[phase] = found
        return Bytes(found)

    def expected(self, phase: Phase) -> Bytes:
        """Return the expected bytes of the fullest moment of a phase (0: the phase has none)."""
        if self._forms is None:
            return Bytes(max((s[1] for s in self.stages if s[0].phase is phase), default=0))
        return Bytes(whole(self._fullest(self._forms.peaks.get(phase, ()), self.work.rows)))

    @property
    def expected_peak(self) -> Bytes:
        """Expected peak of the call's working set inside PyTorch."""
        if self._forms is None:
            return max(self.expected(Phase.FORWARD), self.expected(Phase.BACKWARD))
        return Bytes(whole(self._fullest(self._forms.peak, self.work.rows)))

    @property
    def demand(self) -> int:
        """Bound on the call's working set inside PyTorch, and growth outside it."""
        if self._demand is None:
            forms = self._forms
            if forms is None:
                peak = max(self.bound(Phase.FORWARD), self.bound(Phase.BACKWARD))
            else:
                highest = self._fullest(forms.peak, self.work.more_rows)
                peak = Bytes(-(-highest * self.margin_milli // MILLION) + self.call_bytes)
            self._demand = peak + self.growth.bound
        return self._demand

    @property
    def demand_once(self) -> int:
        """`demand`, summed at the layers that may be fullest: cheaper where forms serve once."""
        compiled, work = self.compiled, self.work
        if type(work.rows) is not int:
            return self.demand
        highest = 0
        known: dict[int, tuple[int, ...]] = {}
        for moment, total, _, _ in compiled.stages:
            if moment.phase not in PEAK_PHASES:
                continue
            for layer in fullest_layers(
                moment, compiled.layers, work.forward_only, compiled.linear_layers
            ):
                if layer not in known:
                    known[layer] = work.at(layer, work.more_rows)
                highest = max(highest, dot(total, known[layer]))
        return self._with_margin(highest) + self.growth.bound

    @property
    def persistent_bound(self) -> Bytes:
        """The part of the bound that a split child keeps until its own backward."""
        if self._forms is not None:
            persistent = self._fullest(self._forms.persistent, self.work.more_rows)
            return Bytes(self._with_margin(persistent))
        entries = self.work.everywhere(_each(self.work.more_rows, self.compiled.layers))[:-1]
        return Bytes(
            self._with_margin(
                max(
                    (dot(s.persistent, at) for s in self.compiled.stages for at in entries),
                    default=0,
                )
            )
        )

    @property
    def stages(self) -> tuple[StageFigure, ...]:
        """Every stage that this call passes through, in the order of its moments."""
        if self._stages is None:
            alike = self._forms is not None and self.work.tokens and self.work.rows
            self._stages = tuple(self._alike() if alike else self._layer_by_layer())
        return self._stages

    @property
    def peak(self) -> StageFigure:
        """The stage of the expected peak, the first of those that are as full."""
        return self._peak if self.stages else NOTHING

    def terms(self, stage: StageFigure) -> dict[str, Bytes]:
        """Return the expected bytes of every live term of a stage."""
        quantities = self.work.at(stage[3], self.work.rows)
        found: dict[str, int] = {
            name: -(-(value * quantities[index] + (dot(rest, quantities) if rest else 0)) // MILLI)
            for name, index, value, rest in self.compiled.named(stage[0])
        }
        return found  # type: ignore[return-value]

    def live(self, stage: StageFigure) -> Sequence[LiveTerm]:
        """Return the live terms of a stage."""
        return self.compiled.stages[self.compiled.moments.index(stage[0])].live

    @property
    def routed_rows(self) -> tuple[Rows, ...]:
        """Expected routed rows of each layer."""
        return tuple(Rows(rows) for rows in _each(self.work.rows, self.compiled.layers))

    def _with_margin(self, milli: int) -> int:
        return -(-milli * self.margin_milli // MILLION) + self.call_bytes

    def _fullest(self, forms: Sequence[Form], rows: int | tuple[int, ...]) -> int:
        """Return the highest of some forms, in thousandths."""
        _, tokens, requests, _, _, slots, head = self.work[:7]
        highest = 0
        for once, a, b, c, d, e in forms:
            value = once + a * tokens + b * requests + c * rows + d * slots + e * head  # type: ignore[operator]
            if value > highest:
                highest = value
        return highest

    def _alike(self) -> list[StageFigure]:
        """Return every stage where all layers have the same routed rows."""
        assert self._forms is not None
        _, tokens, requests, rows, more_rows, slots, head = self.work[:7]
        margin = self.margin_milli
        found: list[StageFigure] = []
        peak = NOTHING
        for moment, may_be_peak, candidates in self._forms.stages:
            expected = bound = at = -1
            for layer, (once, a, b, c, d, e) in candidates:
                fixed = once + a * tokens + b * requests + d * slots + e * head
                value = fixed + c * rows  # type: ignore[operator]
                if value > expected:
                    expected, at = value, layer
                value = fixed + c * more_rows  # type: ignore[operator]
                if value > bound:
                    bound = value
            high = -(-bound * margin // MILLION) + self.call_bytes
            stage = moment, -(-expected // MILLI), high, at
            if may_be_peak and stage[1] > peak[1]:
                peak = stage
            found.append(stage)
        self._peak = peak
        return found

    def _layer_by_layer(self) -> list[StageFigure]:
        """Return every stage by the sum of its terms at every layer."""
        layers, work = self.compiled.layers, self.work
        expected = work.everywhere(_each(work.rows, layers))
        more = work.everywhere(_each(work.more_rows, layers))
        found: list[StageFigure] = []
        for stage in self.compiled.stages:
            if work.forward_only and stage.moment.phase is Phase.BACKWARD:
                continue
            at = (layers,) if stage.moment is Moment.BETWEEN_CALLS else range(layers)
            sums = [dot(stage.total, expected[layer]) for layer in at]
            fullest = max(sums)
            high = self._with_margin(max(dot(stage.total, more[layer]) for layer in at))
            found.append((stage.moment, whole(fullest), high, at[sums.index(fullest)]))
        peaks = [s for s in found if s[0].phase in PEAK_PHASES]
        self._peak = max(peaks, key=lambda stage: stage[1], default=NOTHING)
        return found


def _each(rows: int | tuple[int, ...], layers: int) -> tuple[int, ...]:
    return (rows,) * layers if isinstance(rows, int) else rows
