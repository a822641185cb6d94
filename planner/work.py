"""Work: what one call brings to one rank, in counts; the other factor of `planner.size.Size`."""

from dataclasses import dataclass
from itertools import accumulate

from planner.local import Local
from planner.units import Rows, Tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Counts of one call on one rank.

    Parameters
    ----------
    tokens, requests
        Local tokens (padding included), and requests of this rank's replica.
    group_slots
        Ranks of the expert group x tokens of its busiest rank.
    rows
        Routed rows at this rank's experts, per layer.
    accumulating
        Whether an earlier child of the same call has left gradients that this one adds to.
    """

    tokens: Tokens
    requests: int
    group_slots: Tokens
    rows: tuple[Rows, ...]
    accumulating: bool = False

    def candidate_layers(self) -> range:
        """Layers at which a moment can be fullest: all, or both ends where every layer is alike.

        A price is affine in the layer's place when the rows are the same everywhere.
        """
        last = len(self.rows) - 1
        if self.rows.count(self.rows[0]) == len(self.rows):
            return range(0, last + 1, max(last, 1))
        return range(last + 1)

    def quantities(self, local: Local) -> tuple[tuple[int, ...], ...]:
        """Return, for each layer, the counts in the order of `planner.size.QUANTITIES`."""
        layers = len(self.rows)
        below = tuple(accumulate(self.rows))
        head = min(self.tokens, local.head_chunk)
        rows: list[tuple[int, ...]] = []
        for layer in range(layers):
            reached, passed = layer + 1, layers - layer - 1
            rows.append(
                (
                    1,
                    self.tokens,
                    self.requests,
                    self.rows[layer],
                    self.group_slots,
                    head,
                    layers if self.accumulating else passed,
                    self.tokens * reached,
                    self.tokens * passed,
                    below[layer],
                    below[-1] - below[layer],
                    self.group_slots * reached,
                    self.group_slots * passed,
                )
            )
        return tuple(rows)
