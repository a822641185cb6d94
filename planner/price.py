"""Price: the bytes that one call will hold on one rank, term by term and moment by moment."""

from collections.abc import Mapping
from dataclasses import dataclass

from planner.coefficients import Unpriced
from planner.explain import explain
from planner.moments import Moment, Phase
from planner.units import Bytes, Rows, Tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class MomentPrice:
    """Bytes inside PyTorch at one moment, at the layer where it is fullest.

    Parameters
    ----------
    expected, bound
        Sum of the live terms; the bound has the routing allowance and the margin.
    layer
        The layer at which the expected sum is fullest.
    """

    expected: Bytes
    bound: Bytes
    layer: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One term at one moment: copies x one copy = bytes (expected)."""

    term: str
    moment: Moment
    copies: float
    expected: Bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """What one call will hold on one rank.

    Parameters
    ----------
    rank, coefficients
        Global rank, and the name of the table that priced it.
    local_tokens, routed_rows
        Tokens of this rank (padding included); expected routed rows of each layer.
    moments
        Bytes inside PyTorch at every moment.
    lines
        Every term at every moment at which it is live.
    growth_bytes
        What the buffers outside PyTorch grow by, by their formula.
    growth_bound_bytes
        The same with the table's margin: what admission sets aside.
    buffer_tokens
        Padded tokens of the buffer that this call needs (0: no buffer).
    persistent_bound_bytes
        The part of the backward bound that a split child keeps until its own backward.
    unpriced
        What this rank will hold and the table does not price.
    """

    rank: int
    coefficients: str
    local_tokens: Tokens
    routed_rows: tuple[Rows, ...]
    moments: Mapping[Moment, MomentPrice]
    lines: tuple[Line, ...]
    growth_bytes: Bytes
    growth_bound_bytes: Bytes
    buffer_tokens: Tokens
    persistent_bound_bytes: Bytes
    unpriced: tuple[Unpriced, ...]

    def peak(self, *phases: Phase) -> tuple[Bytes, Bytes]:
        """Return the fullest moment of these phases: expected and bound, each by itself."""
        found = [price for moment, price in self.moments.items() if moment.phase in phases]
        return (
            max((price.expected for price in found), default=Bytes(0)),
            max((price.bound for price in found), default=Bytes(0)),
        )

    @property
    def peak_moment(self) -> Moment:
        """The moment of the expected peak."""
        peaks = (m for m in self.moments if m.phase in (Phase.FORWARD, Phase.BACKWARD))
        return max(peaks, key=lambda moment: self.moments[moment].expected)

    @property
    def expected_bytes(self) -> Bytes:
        """Expected peak of the call's working set inside PyTorch."""
        return self.peak(Phase.FORWARD, Phase.BACKWARD)[0]

    @property
    def bound_bytes(self) -> Bytes:
        """Bound on the call's working set inside PyTorch."""
        return self.peak(Phase.FORWARD, Phase.BACKWARD)[1]

    @property
    def forward_bytes(self) -> Bytes:
        """Forward peak that admission reserves: bound and growth."""
        return Bytes(self.peak(Phase.FORWARD)[1] + self.growth_bound_bytes)

    @property
    def backward_bytes(self) -> Bytes:
        """Backward (checkpoint) peak that admission reserves: bound and growth."""
        return Bytes(self.peak(Phase.BACKWARD)[1] + self.growth_bound_bytes)

    @property
    def retained_bytes(self) -> Bytes:
        """Expected bytes held once forward has returned; never holds growth."""
        return self.peak(Phase.RETAINED)[0]

    @property
    def retained_bound_bytes(self) -> Bytes:
        """Bound on what is held once forward has returned; never holds growth."""
        return self.peak(Phase.RETAINED)[1]

    @property
    def left_over_bytes(self) -> Bytes:
        """What this call leaves alive for the next one to find held over."""
        return self.peak(Phase.BETWEEN)[0]

    @property
    def demand_bytes(self) -> Bytes:
        """What admission compares with the room: bound inside PyTorch and growth outside it."""
        return Bytes(self.bound_bytes + self.growth_bound_bytes)

    @property
    def terms(self) -> dict[str, Bytes]:
        """Expected bytes of each term at the expected peak."""
        return self.terms_at(self.peak_moment)

    def terms_at(self, moment: Moment) -> dict[str, Bytes]:
        """Return the expected bytes of each term at ``moment``."""
        return {line.term: line.expected for line in self.lines if line.moment is moment}

    def __str__(self) -> str:
        return explain(self)
