"""Figures: the bytes that one kind of rank will hold, each worked out when it is first asked for.

Ranks with the same tokens, group, routing and held buffer share one `Figures`. Where every layer
has the same routed rows, a peak is a maximum over a few linear forms (`planner.forms`); else every
layer of every stage is summed.
"""

from collections.abc import Sequence
from typing import NamedTuple

from planner.compiled import Compiled, LiveTerm, dot, whole
from planner.forms import Form, Forms
from planner.moments import Moment, Phase
from planner.units import Bytes, Rows, Tokens
from planner.work import Work


class StageFigure(NamedTuple):
    """One stage in whole bytes: expected and bound, and the layer at which it is fullest."""

    moment: Moment
    expected: Bytes
    bound: Bytes
    layer: int


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
    """

    __slots__ = ("_bounds", "_forms", "_stages", "compiled", "growth", "margin_milli", "work")

    def __init__(self, compiled: Compiled, work: Work, margin_milli: int, growth: Growth) -> None:
        self.compiled = compiled
        self.work = work
        self.margin_milli = margin_milli
        self.growth = growth
        self._forms: Forms | None = None
        if type(work.rows) is int:
            self._forms = compiled.forms(work.accumulating, work.forward_only)
        self._bounds: dict[Phase, Bytes] = {}
        self._stages: tuple[StageFigure, ...] | None = None

    def bound(self, phase: Phase) -> Bytes:
        """Return the bound on the fullest moment of a phase (0: the phase has none)."""
        found = self._bounds.get(phase)
        if found is None:
            if self._forms is None:
                found = max(
                    (s.bound for s in self.stages if s.moment.phase is phase), default=Bytes(0)
                )
            else:
                forms = self._forms.peaks.get(phase, ())
                found = self._with_margin(self._fullest(forms, self.work.more_rows))
            self._bounds[phase] = found
        return found

    def expected(self, phase: Phase) -> Bytes:
        """Return the expected bytes of the fullest moment of a phase (0: the phase has none)."""
        if self._forms is None:
            return max(
                (s.expected for s in self.stages if s.moment.phase is phase), default=Bytes(0)
            )
        return Bytes(whole(self._fullest(self._forms.peaks.get(phase, ()), self.work.rows)))

    @property
    def expected_peak(self) -> Bytes:
        """Expected peak of the call's working set inside PyTorch."""
        return max(self.expected(Phase.FORWARD), self.expected(Phase.BACKWARD))

    @property
    def demand(self) -> int:
        """Bound on the call's working set inside PyTorch, and growth outside it."""
        return max(self.bound(Phase.FORWARD), self.bound(Phase.BACKWARD)) + self.growth.bound

    @property
    def persistent_bound(self) -> Bytes:
        """The part of the bound that a split child keeps until its own backward."""
        if self._forms is not None:
            return self._with_margin(self._fullest(self._forms.persistent, self.work.more_rows))
        entries = self.work.everywhere(_each(self.work.more_rows, self.compiled.layers))[:-1]
        return self._with_margin(
            max((dot(s.persistent, at) for s in self.compiled.stages for at in entries), default=0)
        )

    @property
    def stages(self) -> tuple[StageFigure, ...]:
        """Every stage that this call passes through, in the order of its moments."""
        if self._stages is None:
            alike = self._forms is not None and self.work.tokens and self.work.rows
            self._stages = tuple(self._alike() if alike else self._layer_by_layer())
        return self._stages

    def lines(self, stage: StageFigure) -> list[tuple[LiveTerm, Bytes]]:
        """Return every live term of a stage with its expected bytes."""
        quantities = self.work.at(stage.layer, self.work.rows)
        index = self.compiled.moments.index(stage.moment)
        return [
            (live, Bytes(whole(dot(live.weights, quantities))))
            for live in self.compiled.stages[index].live
        ]

    @property
    def routed_rows(self) -> tuple[Rows, ...]:
        """Expected routed rows of each layer."""
        return tuple(Rows(rows) for rows in _each(self.work.rows, self.compiled.layers))

    def _with_margin(self, milli: int) -> Bytes:
        return Bytes(whole(whole(milli * self.margin_milli)))

    def _fullest(self, forms: Sequence[Form], rows: int | tuple[int, ...]) -> int:
        """Return the highest of some forms, in thousandths."""
        _, tokens, requests, _, _, slots, head, *_ = self.work
        highest = 0
        for once, a, b, c, d, e in forms:
            value = once + a * tokens + b * requests + c * rows + d * slots + e * head  # type: ignore[operator]
            if value > highest:
                highest = value
        return highest

    def _alike(self) -> list[StageFigure]:
        """Return every stage where all layers have the same routed rows."""
        assert self._forms is not None
        _, tokens, requests, rows, more_rows, slots, head, *_ = self.work
        assert isinstance(rows, int)
        assert isinstance(more_rows, int)
        found: list[StageFigure] = []
        for moment, candidates in zip(self.compiled.moments, self._forms.stages, strict=True):
            expected = bound = at = -1
            for layer, (once, a, b, c, d, e) in candidates:
                fixed = once + a * tokens + b * requests + d * slots + e * head
                if fixed + c * rows > expected:
                    expected, at = fixed + c * rows, layer
                if fixed + c * more_rows > bound:
                    bound = fixed + c * more_rows
            if candidates:
                found.append(
                    StageFigure(moment, Bytes(whole(expected)), self._with_margin(bound), at)
                )
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
            high = max(dot(stage.total, more[layer]) for layer in at)
            found.append(
                StageFigure(
                    stage.moment,
                    Bytes(whole(fullest)),
                    self._with_margin(high),
                    at[sums.index(fullest)],
                )
            )
        return found


def _each(rows: int | tuple[int, ...], layers: int) -> tuple[int, ...]:
    return (rows,) * layers if isinstance(rows, int) else rows
