"""Forms: a stage as a linear form of six counts, where every layer has the same routed rows.

A stage is then affine in the layer's place, among layers of one mixer, from the first to the last
but one (the last has none above it). So its fullest layer is one of three, or of five where there
are two mixers, each of which folds to ``a + b·tokens + c·requests + d·rows + e·slots + f·head
tokens`` with coefficients that are never negative: a form that is nowhere above another can be left
out for good.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from planner.moments import Moment, Phase
from planner.work import Work

Weights = tuple[tuple[int, int], ...]
"""(index into the quantities, thousandths of a byte per unit), non-zero entries only."""

Form = tuple[int, int, int, int, int, int]
"""Thousandths of a byte per call, token, request, routed row, group slot and head token."""

Basis = tuple[tuple[tuple[int, int], ...], ...]


PEAK_PHASES = (Phase.FORWARD, Phase.BACKWARD)
"""The phases whose fullest moment is a call's peak."""


class Forms(NamedTuple):
    """Every stage's forms.

    Parameters
    ----------
    stages
        For each stage: its moment, whether it can be the call's peak, and (layer, form) of each
        layer at which it can be fullest. Those that the call does not pass through are left out.
    peaks
        For each phase, the forms of which one is its peak.
    peak
        Forms of which one is the peak of forward and backward together.
    persistent
        Forms of what a split child keeps until its backward.
    """

    stages: tuple[tuple[Moment, bool, tuple[tuple[int, Form], ...]], ...]
    peaks: dict[Phase, tuple[Form, ...]]
    peak: tuple[Form, ...]
    persistent: tuple[Form, ...]


def fullest_layers(
    moment: Moment, layers: int, forward_only: bool, linear_layers: frozenset[int] = frozenset()
) -> tuple[int, ...]:
    """Layers at which ``moment`` can be fullest for equal rows; ``layers``: the call's end."""
    if moment is Moment.BETWEEN_CALLS:
        return (layers,)
    return _ends(layers, forward_only, linear_layers)


@lru_cache(maxsize=4096)
def _ends(layers: int, forward_only: bool, linear_layers: frozenset[int]) -> tuple[int, ...]:
    found: set[int] = set() if forward_only else {layers - 1}
    for linear in (False, True):
        alike = [layer for layer in range(layers) if (layer in linear_layers) is linear]
        if forward_only:
            found.update(alike[:1])
            continue
        if alike and alike[-1] == layers - 1:
            alike.pop()
        found.update(alike[:1] + alike[-1:])
    return tuple(sorted(found))


def fold_stages(
    stages: Sequence[tuple[Moment, Weights, Weights]],
    layers: int,
    accumulating: bool,
    forward_only: bool,
    linear_layers: frozenset[int] = frozenset(),
) -> Forms:
    """Fold (moment, total weights, persistent weights) of each stage; drop what never is fullest.

    Without gradients there is no backward: its stages have no forms.
    """
    folded: list[tuple[Moment, bool, tuple[tuple[int, Form], ...]]] = []
    peaks: dict[Phase, list[tuple[int, Form]]] = {}
    persistent: list[tuple[int, Form]] = []

    def fold(weights: Weights, layer: int) -> tuple[int, Form]:
        linear = layer in linear_layers
        return layer, _fold(weights, _basis(layers, layer, accumulating, forward_only, linear))

    for moment, total, kept in stages:
        phase = moment.phase
        if forward_only and phase is Phase.BACKWARD:
            continue
        at = fullest_layers(moment, layers, forward_only, linear_layers)
        candidates = _undominated([fold(total, layer) for layer in at])
        folded.append((moment, phase in PEAK_PHASES, tuple(candidates)))
        peaks.setdefault(phase, []).extend(candidates)
        if kept and phase is not Phase.BETWEEN:
            persistent += [fold(kept, layer) for layer in at]
    return Forms(
        stages=tuple(folded),
        peaks={phase: _forms(_undominated(found)) for phase, found in peaks.items()},
        peak=_forms(_undominated([c for phase in PEAK_PHASES for c in peaks.get(phase, ())])),
        persistent=_forms(_undominated(persistent)),
    )


def _forms(candidates: Sequence[tuple[int, Form]]) -> tuple[Form, ...]:
    return tuple([form for _, form in candidates])


def _fold(weights: Weights, basis: Basis) -> Form:
    form = [0, 0, 0, 0, 0, 0]
    for index, value in weights:
        for place, factor in basis[index]:
            form[place] += value * factor
    return tuple(form)  # type: ignore[return-value]


def _undominated(candidates: list[tuple[int, Form]]) -> list[tuple[int, Form]]:
    """Leave out every form that is nowhere above another; of equal ones the first stays."""
    kept: list[tuple[int, Form]] = []
    for candidate in candidates:
        form = candidate[1]
        if any(_covers(other, form) for _, other in kept):
            continue
        kept = [other for other in kept if not _covers(form, other[1])]
        kept.append(candidate)
    return kept


def _covers(over: Form, under: Form) -> bool:
    return (
        over[1] >= under[1]
        and over[3] >= under[3]
        and over[0] >= under[0]
        and over[2] >= under[2]
        and over[4] >= under[4]
        and over[5] >= under[5]
    )


@lru_cache(maxsize=4096)
def _basis(layers: int, layer: int, accumulating: bool, forward_only: bool, linear: bool) -> Basis:
    """For each quantity, which of the six counts it is made of here, and how many times."""
    linear_layers = frozenset((layer,)) if linear else frozenset()

    def counts(tokens: int, requests: int, rows: int, slots: int, head: int) -> tuple[int, ...]:
        return Work(
            *(layers, tokens, requests, rows, rows, slots, head, accumulating, forward_only),
            linear_layers,
        ).at(layer, rows)

    fixed = counts(0, 0, 0, 0, 0)
    units = [counts(*[int(place == unit) for place in range(5)]) for unit in range(5)]
    return tuple(
        tuple(
            (place, factor)
            for place, factor in enumerate([fixed[i], *[unit[i] - fixed[i] for unit in units]])
            if factor
        )
        for i in range(len(fixed))
    )
