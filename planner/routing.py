"""Routing: how many of a group's (token, expert) pairs arrive at each rank and layer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planner.errors import ConfigError
from planner.units import Rows


@dataclass(frozen=True, slots=True)
class Routing:
    """What is known of the router before the call.

    Parameters
    ----------
    shares
        For each layer, the share of all pairs that each expert receives (sums to 1 a layer), from a
        record or a census; ``None``: balanced, every rank of a group receives its even share.

    Raises
    ------
    ConfigError
        When a share is negative or a layer's shares do not sum to 1 (within 1e-6).
    """

    shares: tuple[tuple[float, ...], ...] | None = None

    def __post_init__(self) -> None:
        for layer, row in enumerate(self.shares or ()):
            if any(not share >= 0 for share in row) or abs(sum(row) - 1) > 1e-6:
                raise ConfigError(
                    f"Routing: the shares of layer {layer} must be at least 0 and sum to 1; "
                    f"they sum to {sum(row):.6f} (least {min(row, default=0)})"
                )

    @classmethod
    def balanced(cls) -> "Routing":
        """Every rank of an expert group receives an even share."""
        return cls()

    @classmethod
    def measured(cls, shares: Sequence[Sequence[float]]) -> "Routing":
        """Shares of each layer and expert, as a record or a census gives them."""
        return cls(tuple(tuple(float(s) for s in row) for row in shares))

    @classmethod
    def skewed(cls, experts: int, layers: int, ep: int, imbalance: float) -> "Routing":
        """Routing in which expert rank 0 receives ``imbalance`` times its even share.

        At ep = 1 every row stays on its rank whatever the routing, and the shares are even.

        Raises
        ------
        ConfigError
            When no routing has that imbalance, naming the range that has.
        """
        if ep == 1:
            return cls(((1.0 / experts,) * experts,) * layers)
        if not 1 <= imbalance <= ep:
            raise ConfigError(
                f"Routing: the busiest of ep = {ep} ranks can receive 1 to {ep} times its even "
                f"share; an imbalance of {imbalance:g} was asked for"
            )
        local = experts // ep
        rest = (ep - imbalance) / (ep - 1)
        row = (imbalance / experts,) * local + (rest / experts,) * (experts - local)
        return cls((row,) * layers)

    def require(self, num_layers: int, num_experts: int) -> None:
        """Check that measured shares are of a model of these sizes."""
        if self.shares is None:
            return
        widths = {len(row) for row in self.shares}
        if len(self.shares) != num_layers or widths != {num_experts}:
            raise ConfigError(
                f"Routing was measured on {len(self.shares)} layers x {sorted(widths)} experts; "
                f"the model has {num_layers} x {num_experts}; measure it on this model"
            )

    def rank_shares(
        self, ep: int, ep_rank: int, layers: Sequence[int] | None = None
    ) -> tuple[float, ...] | None:
        """Return the share of each layer's pairs that arrives at expert rank ``ep_rank``.

        Of all layers, or of ``layers``, in their order: those of a pipeline stage.
        """
        if self.shares is None:
            return None
        local = len(self.shares[0]) // ep
        mine = slice(ep_rank * local, (ep_rank + 1) * local)
        chosen = self.shares if layers is None else [self.shares[layer] for layer in layers]
        return tuple(math.fsum(row[mine]) for row in chosen)


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowance:
    """Factors on routed rows for the bound.

    Parameters
    ----------
    balanced
        Factor where routing is not known, applied as ``ceil(top_k x balanced)`` rows a token
        (domain: the published planner's 1.5).
    measured
        Factor on rows that follow from measured shares.
    """

    balanced: float = 1.0
    measured: float = 1.0


def expected_rows(shares: tuple[float, ...], group_tokens: int, top_k: int) -> tuple[Rows, ...]:
    """Return routed rows per layer: the measured share of the group's pairs, rounded up."""
    return tuple(Rows(math.ceil(group_tokens * top_k * share)) for share in shares)


def bound_rows(expected: tuple[Rows, ...], allowance: Allowance, worst: int) -> tuple[Rows, ...]:
    """Return measured rows with the allowance, never above the worst case.

    The worst: every token of the group goes to as many of this rank's experts as it can.
    """
    return tuple(
        Rows(max(rows, min(math.ceil(rows * allowance.measured), worst))) for rows in expected
    )


def allowed_per_token(allowance: Allowance, top_k: int) -> int:
    """Return the rows that a token is allowed for where routing is not known."""
    return math.ceil(top_k * allowance.balanced)
