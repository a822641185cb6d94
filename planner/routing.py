"""Routing: how many of a group's (token, expert) pairs arrive at each rank and layer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planner.errors import ConfigError
from planner.plain import to_plain
from planner.units import Rows

Shares = tuple[tuple[float, ...], ...]
"""For each layer, the share of all pairs that each expert receives."""


@dataclass(frozen=True, slots=True)
class Routing:
    """What is known of the router before the call.

    Parameters
    ----------
    shares
        For each layer, the share of all pairs that each expert receives (sums to 1 a layer), from a
        record or a census; ``None``: balanced, every rank of a group receives its even share.
    allowance
        Factor on routed rows for the bound, in place of the table's.
    worst
        Whether every rank is priced as if all pairs went to it that can.
    samples, quantile
        Shares as several calls had them, and the part of those calls whose rows the bound covers:
        each rank's own quantile of its share, layer by layer, takes the allowance's place.

    Raises
    ------
    ConfigError
        When a share is negative or a layer's shares do not sum to 1 (within 1e-6), or a factor or
        quantile is out of its range.
    """

    shares: Shares | None = None
    allowance: float | None = None
    worst: bool = False
    samples: tuple[Shares, ...] = ()
    quantile: float = 1.0

    def __post_init__(self) -> None:
        if self.allowance is not None and not self.allowance >= 1:
            raise ConfigError(f"Routing.allowance must be at least 1; got {self.allowance!r}")
        if not 0 < self.quantile <= 1:
            raise ConfigError(f"Routing.quantile must lie in (0, 1]; got {self.quantile!r}")
        for shares in (self.shares or (), *self.samples):
            self._require_sums(shares)

    @staticmethod
    def _require_sums(shares: Shares) -> None:
        for layer, row in enumerate(shares):
            if any(not share >= 0 for share in row) or abs(sum(row) - 1) > 1e-6:
                raise ConfigError(
                    f"Routing: the shares of layer {layer} must be at least 0 and sum to 1; "
                    f"they sum to {sum(row):.6f} (least {min(row, default=0)})"
                )

    @classmethod
    def balanced(cls, allowance: float | None = None) -> "Routing":
        """Every rank of an expert group receives an even share; the bound takes the factor."""
        return cls(allowance=allowance)

    @classmethod
    def worst_case(cls) -> "Routing":
        """Every rank receives all pairs of its group that can go to it: ep times an even share.

        A token's pairs go to different experts, so that a rank with fewer experts than top-k is
        spared the rest.
        """
        return cls(worst=True)

    @classmethod
    def measured(
        cls, shares: Sequence[Sequence[float]], allowance: float | None = None
    ) -> "Routing":
        """Shares of each layer and expert, as a record or a census gives them."""
        return cls(_tuples(shares), allowance=allowance)

    @classmethod
    def sampled(
        cls, samples: Sequence[Sequence[Sequence[float]]], quantile: float = 0.99
    ) -> "Routing":
        """Shares as several calls had them: their mean is expected, their quantile is the bound.

        Raises
        ------
        ConfigError
            Also when there is no sample, or they are of different models.
        """
        calls = tuple(_tuples(sample) for sample in samples)
        sizes = {tuple(len(row) for row in call) for call in calls}
        if len(sizes) != 1:
            raise ConfigError(
                f"Routing.sampled needs calls of one model; got {len(calls)} calls of "
                f"{len(sizes)} shapes"
            )
        mean = tuple(
            tuple(math.fsum(column) / len(calls) for column in zip(*rows, strict=True))
            for rows in zip(*calls, strict=True)
        )
        return cls(mean, samples=calls, quantile=quantile)

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

    @property
    def kind(self) -> str:
        """``balanced``, ``worst`` or ``measured``."""
        if self.worst:
            return "worst"
        return "balanced" if self.shares is None else "measured"

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
        return None if self.shares is None else _rank_shares(self.shares, ep, ep_rank, layers)

    def rank_bound_shares(
        self, ep: int, ep_rank: int, layers: Sequence[int] | None = None
    ) -> tuple[float, ...] | None:
        """Return what the bound takes in their place; ``None``: them, times the allowance."""
        if not self.samples:
            return None
        calls = [_rank_shares(sample, ep, ep_rank, layers) for sample in self.samples]
        place = math.ceil(self.quantile * len(calls)) - 1
        return tuple(sorted(shares)[place] for shares in zip(*calls, strict=True))

    def to_plain(self) -> object:
        """Return JSON values that `from_plain` reads; the shares alone where that is all."""
        if self == Routing(self.shares):
            return to_plain(self.shares)
        return to_plain(self)

    @classmethod
    def from_plain(cls, values: object) -> "Routing":
        """Read what `to_plain` gave."""
        if isinstance(values, dict):
            parts = {**values, "samples": tuple(_tuples(call) for call in values["samples"])}
            if values["shares"] is not None:
                parts["shares"] = _tuples(values["shares"])
            return cls(**parts)
        return cls() if values is None else cls.measured(values)  # type: ignore[arg-type]


def _tuples(shares: Sequence[Sequence[float]]) -> Shares:
    return tuple(tuple(float(share) for share in row) for row in shares)


def _rank_shares(
    shares: Shares, ep: int, ep_rank: int, layers: Sequence[int] | None
) -> tuple[float, ...]:
    local = len(shares[0]) // ep
    mine = slice(ep_rank * local, (ep_rank + 1) * local)
    chosen = shares if layers is None else [shares[layer] for layer in layers]
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
