"""RoutingPlan: how many rows each rank sends to each expert, where no real router can say.

Torch is not needed. A plan answers for every call and layer with whole counts that conserve rows:
each source rank sends tokens x top-k in all, and no expert more than its tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.errors import ConfigError
from planner.routing import Routing

Counts = NDArray[np.int64]
"""Rows from each source rank of an expert group to each expert, (sources, experts)."""


@dataclass(frozen=True, slots=True)
class RoutingPlan:
    """Routing given beforehand: by shares, or by counts that a run recorded.

    Parameters
    ----------
    experts, top_k
        Of the model.
    shares
        For each layer the share of all rows that each expert receives; ``None``: an even one.
    recorded
        Instead: for each call and layer, rows from each global rank to each expert.

    Raises
    ------
    ConfigError
        When shares do not sum to 1, or give an expert more rows than there are tokens.
    """

    experts: int
    top_k: int
    shares: tuple[tuple[float, ...], ...] | None = None
    recorded: tuple[tuple[Counts, ...], ...] | None = None

    def __post_init__(self) -> None:
        Routing(self.shares)  # checks that they sum to 1
        for layer, row in enumerate(self.shares or ()):
            if len(row) != self.experts:
                raise ConfigError(
                    f"RoutingPlan: layer {layer} has shares of {len(row)} experts, "
                    f"the model has {self.experts}; give one share an expert"
                )
            if max(row) * self.top_k > 1 + 1e-9:
                raise ConfigError(
                    f"RoutingPlan: layer {layer} gives expert {row.index(max(row))} the share "
                    f"{max(row):.4f}; with top-k {self.top_k} a token goes to an expert once, so "
                    f"that no share may be above {1 / self.top_k:.4f}"
                )

    def counts(self, call: int, layer: int, ranks: Sequence[int], tokens: Sequence[int]) -> Counts:
        """Return the rows from each of ``ranks``, holding ``tokens`` each, to each expert.

        Raises
        ------
        ConfigError
            When recorded counts do not hold this call or layer, or do not sum to tokens x top-k.
        """
        if self.recorded is not None:
            return self._as_recorded(call, layer, ranks, tokens)
        if self.shares is None:
            shares = np.full(self.experts, 1.0 / self.experts)
        else:
            shares = np.asarray(self.shares[layer])
        found = np.empty((len(ranks), self.experts), dtype=np.int64)
        turn = 0
        for source, held in enumerate(tokens):
            found[source], turn = _apportion(held * self.top_k, shares, held, turn)
        return found

    def _as_recorded(
        self, call: int, layer: int, ranks: Sequence[int], tokens: Sequence[int]
    ) -> Counts:
        assert self.recorded is not None
        if call >= len(self.recorded) or layer >= len(self.recorded[call]):
            raise ConfigError(
                f"RoutingPlan: no counts were recorded for call {call}, layer {layer}; record as "
                "many calls and layers as are run"
            )
        counts = self.recorded[call][layer][list(ranks)]
        wanted = np.asarray(tokens) * self.top_k
        if (counts.sum(1) != wanted).any():
            raise ConfigError(
                f"RoutingPlan: the counts of call {call}, layer {layer} sum to "
                f"{counts.sum(1).tolist()} rows; ranks {list(ranks)} hold {list(tokens)} tokens, "
                f"which make {wanted.tolist()}"
            )
        return counts


def _apportion(rows: int, shares: NDArray[np.float64], most: int, turn: int) -> tuple[Counts, int]:
    """Divide ``rows`` by ``shares``, whole and at most ``most`` each; largest remainders first.

    Among equal remainders the experts from ``turn`` on come first, so that what is left over of one
    source after another goes round all experts; also return where the next one starts.
    """
    exact = rows * shares / shares.sum()
    counts = np.minimum(np.floor(exact + 1e-9).astype(np.int64), most)
    left = rows - int(counts.sum())
    order = np.roll(np.arange(len(shares)), -turn)
    order = order[np.argsort(-(exact - counts)[order].round(9), kind="stable")]
    while left > 0:
        room = order[counts[order] < most][:left]
        counts[room] += 1
        left -= len(room)
        turn = (turn + len(room)) % len(shares)
    return counts, turn
