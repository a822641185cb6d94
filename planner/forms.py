"""Forms: every stage as a maximum over linear forms of a call's counts (`planner.folding`).

A stage is affine in the layer's place, among layers of one mixer, from the first to the last but
one (the last has none above it). So its fullest layer is one of three, or of five where there are
two mixers, each of which folds to one form. (Without a backward layer 0 holds one input fewer than
the others, and is never above them.) Coefficients are never negative: a form that is nowhere above
another can be left out for good.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from planner.coefficients import MILLI
from planner.folding import Counts, Folding, Form, Weights
from planner.moments import Moment, Phase

PEAK_PHASES = (Phase.FORWARD, Phase.BACKWARD)
"""The phases whose fullest moment is a call's peak."""


class Side(NamedTuple):
    """Forms of one side of a price: of what is expected, or of its bound, margin included.

    They are kept negated, in parts of a byte: what is fullest is lowest, and flooring rounds up.

    Parameters
    ----------
    parts
        How many parts are a byte.
    forms
        Of every stage, one after the other, the forms of the layers at which it can be fullest.
    layers
        The layer of each form.
    spans
        The stretch of forms of each stage; ``None`` where every stage has one.
    peaks
        For each phase, the forms of which one is its peak.
    peak
        Forms of which one is the peak of forward and backward together.
    """

    parts: int
    forms: tuple[Form, ...]
    layers: tuple[int, ...]
    spans: tuple[tuple[int, int], ...] | None
    peaks: dict[Phase, tuple[Form, ...]]
    peak: tuple[Form, ...]

    def stages(self, counts: Counts) -> tuple[list[int], tuple[int, ...]]:
        """Return the bytes of each stage at its fullest layer, and that layer (the first)."""
        parts, layers = self.parts, self.layers
        if self.spans is None and len(counts) == 3:  # the usual call, in one pass
            _, tokens, requests = counts
            return [
                -((once + a * tokens + b * requests) // parts) for once, a, b in self.forms
            ], layers
        values = _evaluate(self.forms, counts)
        if self.spans is not None:
            lowest = [min(values[start:end]) for start, end in self.spans]
            layers = tuple(
                [
                    layers[values.index(least, start, end)]
                    for least, (start, end) in zip(lowest, self.spans, strict=True)
                ]
            )
            values = lowest
        return [-(value // parts) for value in values], layers

    def most(self, forms: Sequence[Form], counts: Counts) -> int:
        """Return the bytes of the highest of some forms (0: there are none)."""
        if not forms:
            return 0
        return -(min(_evaluate(forms, counts)) // self.parts)


class Forms(NamedTuple):
    """Every stage's forms.

    Parameters
    ----------
    moments
        Moment of each stage.
    places
        Which stages belong to each phase.
    expected, bound
        Their forms. Where tokens do not lie evenly, the bound's are for counts with more rows.
    persistent
        Forms, on the bound's side, of what a split child keeps until its backward.
    """

    folding: Folding
    moments: tuple[Moment, ...]
    places: dict[Phase, tuple[int, ...]]
    expected: Side
    bound: Side
    persistent: tuple[Form, ...]


def _evaluate(forms: Sequence[Form], counts: Counts) -> list[int]:
    if len(counts) == 3:
        _, tokens, requests = counts
        return [once + a * tokens + b * requests for once, a, b in forms]
    _, tokens, requests, rows, slots, head = counts
    return [
        once + a * tokens + b * requests + c * rows + d * slots + e * head
        for once, a, b, c, d, e in forms
    ]


def fullest_layers(
    moment: Moment, layers: int, linear_layers: frozenset[int] = frozenset()
) -> tuple[int, ...]:
    """Layers at which ``moment`` can be fullest for equal rows; ``layers``: the call's end."""
    if moment is Moment.BETWEEN_CALLS:
        return (layers,)
    return _ends(layers, linear_layers)


@lru_cache(maxsize=4096)
def _ends(layers: int, linear_layers: frozenset[int]) -> tuple[int, ...]:
    found = {layers - 1}
    for linear in (False, True):
        alike = [layer for layer in range(layers) if (layer in linear_layers) is linear]
        if alike and alike[-1] == layers - 1:
            alike.pop()
        found.update(alike[:1] + alike[-1:])
    return tuple(sorted(found))


Candidates = list[tuple[int, Form]]


def fold_stages(stages: Sequence[tuple[Moment, Weights, Weights]], folding: Folding) -> Forms:
    """Fold each stage's (moment, total, persistent weights); drop what never is fullest."""
    margin = folding.margin_milli
    passed = [(moment, moment.phase, total, kept) for moment, total, kept in stages]
    at = {
        moment: fullest_layers(moment, folding.layers, folding.linear_layers)
        for moment, *_ in passed
    }

    def side(by: int, parts: int, *, more: bool) -> Side:
        candidates = [
            (phase, [(layer, folding.fold(total, layer, more=more)) for layer in at[moment]])
            for moment, phase, total, _ in passed
        ]
        return _side(candidates, by, parts, folding.least_tokens)

    persistent = [
        (layer, folding.fold(kept, layer, more=True))
        for moment, phase, _, kept in passed
        if kept and phase is not Phase.BETWEEN
        for layer in at[moment]
    ]
    return Forms(
        folding,
        tuple([moment for moment, *_ in passed]),
        {p: tuple([i for i, (_, phase, *_) in enumerate(passed) if phase is p]) for p in Phase},
        side(1, MILLI, more=False),
        side(margin, MILLI * MILLI, more=True),
        _scaled(_undominated(persistent, folding.least_tokens), margin),
    )


def _side(stages: Sequence[tuple[Phase, Candidates]], margin: int, parts: int, least: int) -> Side:
    phases: dict[Phase, Candidates] = {}
    spans: list[tuple[int, int]] = []
    flat: Candidates = []
    for phase, candidates in stages:
        kept = _undominated(candidates, first=True)
        phases.setdefault(phase, []).extend(kept)
        spans.append((len(flat), len(flat) + len(kept)))
        flat += kept
    peak = [c for phase in PEAK_PHASES for c in phases.get(phase, ())]
    return Side(
        parts,
        _scaled(flat, margin),
        tuple([layer for layer, _ in flat]),
        tuple(spans) if len(flat) > len(spans) else None,
        {phase: _scaled(_undominated(found, least), margin) for phase, found in phases.items()},
        _scaled(_undominated(peak, least), margin),
    )


def _scaled(candidates: Sequence[tuple[int, Form]], margin: int) -> tuple[Form, ...]:
    return tuple([tuple([-value * margin for value in form]) for _, form in candidates])


def _undominated(candidates: Candidates, least: int = 0, *, first: bool = False) -> Candidates:
    """Leave out every form that is nowhere above another; of equal ones the first stays.

    Parameters
    ----------
    least
        Tokens that a call has at least.
    first
        Keep also those that are as high where a call has no requests, so that the first of the
        fullest layers is found.
    """
    kept: list[tuple[Form, tuple[int, Form]]] = []
    for candidate in candidates:
        once, tokens, *others = candidate[1]
        form = once + tokens * least, tokens, *others
        if any(_covers(other, form, first) for other, _ in kept):
            continue
        kept = [other for other in kept if not _covers(form, other[0], first)]
        kept.append((form, candidate))
    return [candidate for _, candidate in kept]


def _covers(over: Form, under: Form, first: bool) -> bool:
    for one, other in zip(over, under, strict=True):
        if one < other:
            return False
    return not first or over == under or over[:2] != under[:2] or over[3:] != under[3:]
