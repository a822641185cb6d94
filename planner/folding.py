"""Folding: weights of the quantities of one layer as a linear form of a call's counts.

Where every layer has the same routed rows, each quantity at a layer is a sum over six counts:
``a + b·tokens + c·requests + d·rows + e·slots + f·head tokens``. Where moreover all ranks hold as
many tokens under balanced routing, rows, slots and head tokens are multiples of the tokens
(`Even`), and three counts are left.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from planner.work import Work

Weights = tuple[tuple[int, int], ...]
"""(index into some counts, thousandths of a byte per unit), non-zero entries only."""

Counts = tuple[int, ...]
"""1, tokens, requests; then, unless they follow from tokens, rows, slots and head tokens."""

Form = tuple[int, ...]
"""Thousandths of a byte per unit of each of the counts."""

Basis = tuple[tuple[tuple[int, int], ...], ...]


class Even(NamedTuple):
    """What one token brings to a rank where every rank of its group holds as many.

    Parameters
    ----------
    rows, more_rows
        Routed rows, as expected and with the allowance for the bound.
    slots
        Group slots.
    head, head_once
        Head tokens of a token, and of a call that has at least as many.
    """

    rows: int
    more_rows: int
    slots: int
    head: int
    head_once: int


@dataclass(frozen=True, slots=True, eq=False)
class Folding:
    """What weights are folded for; two are the same only where they are one object.

    Parameters
    ----------
    layers, linear_layers
        Layers of the rank, and which of them have linear attention.
    accumulating, forward_only
        The kind of call: see `planner.work.Work`.
    margin_milli
        The factor on bytes for the bound, in thousandths.
    even
        What a token brings, where all counts follow from tokens and requests.
    """

    layers: int
    linear_layers: frozenset[int]
    accumulating: bool
    forward_only: bool
    margin_milli: int
    even: Even | None = None

    @property
    def least_tokens(self) -> int:
        """Tokens that such a call has at least."""
        return self.even.head_once if self.even is not None else 0

    def fold(self, weights: Weights, layer: int, *, more: bool = False) -> Form:
        """Return weights of quantities at a layer as a form; ``more``: with the bound's rows."""
        linear = layer in self.linear_layers
        basis = _basis(self.layers, layer, self.accumulating, self.forward_only, linear)
        form = [0, 0, 0, 0, 0, 0]
        for index, value in weights:
            for place, factor in basis[index]:
                form[place] += value * factor
        if self.even is None:
            return tuple(form)
        once, tokens, requests, rows, slots, head = form
        of_token = self.even.more_rows if more else self.even.rows
        return (
            once + head * self.even.head_once,
            tokens + rows * of_token + slots * self.even.slots + head * self.even.head,
            requests,
        )

    def sparse(self, weights: Weights, layer: int) -> Weights:
        """Return the same as weights of the counts."""
        return tuple([(i, value) for i, value in enumerate(self.fold(weights, layer)) if value])


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
