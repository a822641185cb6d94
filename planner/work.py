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

    def candidate_layers(self) -> tuple[int, ...]:
        """Layers at which a moment can be fullest: all, or three where every layer is alike.

        With the same rows everywhere a price is affine in the layer's place from the first to the
        last but one; the last has none above it.
        """
        last = len(self.rows) - 1
        if self.rows.count(self.rows[0]) == len(self.rows):
            return tuple(sorted({0, max(last - 1, 0), last}))
        return tuple(range(last + 1))

    def quantities(self, local: Local) -> tuple[tuple[int, ...], ...]:
        """Return the counts in the order of `planner.size.QUANTITIES`.

        An entry for each layer, and one more for the end of the call: no layer is at hand, all are
        passed, and none of their input gradients is anyone's to receive.
        """
        layers = len(self.rows)
        below = (*accumulate(self.rows), 0)
        total = sum(self.rows)
        head = min(self.tokens, local.head_chunk)
        entries: list[tuple[int, ...]] = []
        for layer in (*range(layers), -1):
            reached, passed = layer + 1, layers - layer - 1
            behind = passed if layer < 0 else max(0, passed - 1)
            entries.append(
                (
                    1,
                    self.tokens,
                    self.requests,
                    self.rows[layer] if layer >= 0 else 0,
                    self.group_slots,
                    head,
                    layers if self.accumulating else passed,
                    self.tokens * reached,
                    self.tokens * passed,
                    below[layer],
                    total - below[layer],
                    self.group_slots * reached,
                    self.group_slots * passed,
                    self.tokens * behind,
                )
            )
        return tuple(entries)
