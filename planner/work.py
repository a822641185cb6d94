"""Work: what one call brings to one rank, in counts; the other factor of `planner.size.Size`."""

from itertools import accumulate
from typing import NamedTuple


class Work(NamedTuple):
    """Counts of one call on one rank.

    Parameters
    ----------
    layers
        Layers that this rank holds.
    tokens, requests
        Local tokens (padding included), and requests of this rank's replica.
    rows, more_rows
        Routed rows at this rank's experts, as expected and with the allowance for the bound: one
        figure where every layer is alike, or each layer's own.
    group_slots
        Ranks of the expert group x tokens of its busiest rank.
    head_tokens
        Tokens of the head's largest chunk.
    accumulating
        Whether an earlier child of the same call has left gradients that this one adds to.
    forward_only
        Whether no request needs gradients, so that there is no backward.
    linear_layers
        Layers, counted on this rank, whose mixer is linear attention.
    """

    layers: int
    tokens: int
    requests: int
    rows: int | tuple[int, ...]
    more_rows: int | tuple[int, ...]
    group_slots: int
    head_tokens: int
    accumulating: bool = False
    forward_only: bool = False
    linear_layers: frozenset[int] = frozenset()

    def quantities(self, layer: int, at_hand: int, below: int, total: int) -> tuple[int, ...]:
        """Return the counts at one layer in the order of `planner.size.QUANTITIES`.

        Layer ``layers`` is the end of the call: no layer is at hand, all are passed, and none of
        their input gradients is anyone's to receive.

        Parameters
        ----------
        at_hand, below, total
            Routed rows of this layer, of those reached (with this one), and of all.
        """
        over = layer == self.layers
        linear = layer in self.linear_layers
        reached, passed = (0, self.layers) if over else (layer + 1, self.layers - layer - 1)
        return (
            1,
            self.tokens,
            self.requests,
            at_hand,
            self.group_slots,
            self.head_tokens,
            self.layers if self.accumulating else passed,
            self.tokens * reached,
            self.tokens * passed,
            below,
            total - below,
            self.group_slots * reached,
            self.group_slots * passed,
            self.tokens * (passed if over else max(0, passed - 1)),
            0 if over or linear else self.tokens,
            self.tokens if linear else 0,
            self.requests if linear else 0,
            self.tokens * (min(2, reached) if self.forward_only else reached),
        )

    def at(self, layer: int, rows: int | tuple[int, ...]) -> tuple[int, ...]:
        """Return the counts at one layer for these routed rows (`rows` or `more_rows`)."""
        if layer == self.layers:
            total = rows * self.layers if isinstance(rows, int) else sum(rows)
            return self.quantities(layer, 0, 0, total)
        if isinstance(rows, int):
            return self.quantities(layer, rows, rows * (layer + 1), rows * self.layers)
        return self.quantities(layer, rows[layer], sum(rows[: layer + 1]), sum(rows))

    def everywhere(self, rows: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return the counts at every layer and at the end of the call."""
        total = sum(rows)
        entries = [
            self.quantities(layer, here, below, total)
            for layer, (here, below) in enumerate(zip(rows, accumulate(rows), strict=True))
        ]
        return [*entries, self.quantities(self.layers, 0, 0, total)]
