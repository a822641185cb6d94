"""Price: the bytes that one call will hold on one rank, term by term and moment by moment."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from planner.coefficients import Unpriced
from planner.explain import explain
from planner.figures import Figures, StageFigure
from planner.lines import Lines
from planner.moments import Moment, Phase
from planner.units import Bytes, Rows, Tokens


class MomentPrice(NamedTuple):
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


class Moments(Mapping[Moment, MomentPrice]):
    """Every stage's figures; they stand, a `MomentPrice` is made when it is read."""

    __slots__ = ("_stages",)

    def __init__(self, stages: tuple[StageFigure, ...]) -> None:
        self._stages = stages

    def __len__(self) -> int:
        return len(self._stages)

    def __iter__(self) -> Iterator[Moment]:
        return iter([stage[0] for stage in self._stages])

    def __getitem__(self, moment: Moment) -> MomentPrice:
        for found, expected, bound, layer in self._stages:
            if found == moment:
                return MomentPrice(Bytes(expected), Bytes(bound), layer)
        raise KeyError(moment)

    def __repr__(self) -> str:
        return repr(dict(self))


class Price:
    """What one call will hold on one rank; figures are worked out when they are read.

    Parameters
    ----------
    rank, coefficients
        Global rank, and the name of the table that priced it.
    figures
        The figures of this kind of rank.
    """

    __slots__ = ("coefficients", "figures", "rank")

    def __init__(self, rank: int, coefficients: str, figures: Figures) -> None:
        self.rank = rank
        self.coefficients = coefficients
        self.figures = figures

    @property
    def local_tokens(self) -> Tokens:
        """Tokens of this rank, padding included."""
        return Tokens(self.figures.work.tokens)

    @property
    def forward_only(self) -> bool:
        """Whether it is the price of a call without a backward."""
        return self.figures.work.forward_only

    @property
    def routed_rows(self) -> tuple[Rows, ...]:
        """Expected routed rows of each layer."""
        return self.figures.routed_rows

    @property
    def moments(self) -> Moments:
        """Bytes inside PyTorch at every moment."""
        return Moments(self.figures.stages)

    @property
    def lines(self) -> Lines:
        """Every term at every moment at which it is live."""
        return self.figures.lines

    def peak(self, *phases: Phase) -> tuple[Bytes, Bytes]:
        """Return the fullest moment of these phases: expected and bound, each by itself."""
        return (
            max((self.figures.expected(phase) for phase in phases), default=Bytes(0)),
            max((self.figures.bound(phase) for phase in phases), default=Bytes(0)),
        )

    @property
    def peak_moment(self) -> Moment:
        """The moment of the expected peak."""
        return self.figures.peak[0]

    @property
    def expected_bytes(self) -> Bytes:
        """Expected peak of the call's working set inside PyTorch."""
        return self.figures.expected_peak

    @property
    def bound_bytes(self) -> Bytes:
        """Bound on the call's working set inside PyTorch."""
        return max(self.figures.bound(Phase.FORWARD), self.figures.bound(Phase.BACKWARD))

    @property
    def forward_bytes(self) -> Bytes:
        """Forward peak that admission reserves: bound and growth."""
        return Bytes(self.figures.bound(Phase.FORWARD) + self.growth_bound_bytes)

    @property
    def backward_bytes(self) -> Bytes:
        """Backward (checkpoint) peak that admission reserves: bound and growth."""
        return Bytes(self.figures.bound(Phase.BACKWARD) + self.growth_bound_bytes)

    @property
    def retained_bytes(self) -> Bytes:
        """Expected bytes held once forward has returned; never holds growth."""
        return self.figures.expected(Phase.RETAINED)

    @property
    def retained_bound_bytes(self) -> Bytes:
        """Bound on what is held once forward has returned; never holds growth."""
        return self.figures.bound(Phase.RETAINED)

    @property
    def left_over_bytes(self) -> Bytes:
        """What this call leaves alive for the next one to find held over."""
        return self.figures.expected(Phase.BETWEEN)

    @property
    def persistent_bound_bytes(self) -> Bytes:
        """The part of the backward bound that a split child keeps until its own backward."""
        return self.figures.persistent_bound

    @property
    def growth_bytes(self) -> Bytes:
        """What the buffers outside PyTorch grow by, by their formula."""
        return self.figures.growth.expected

    @property
    def growth_bound_bytes(self) -> Bytes:
        """The same with the table's margin: what admission sets aside."""
        return self.figures.growth.bound

    @property
    def buffer_tokens(self) -> Tokens:
        """Padded tokens of the buffer that this call needs (0: no buffer)."""
        return self.figures.growth.tokens

    @property
    def demand_bytes(self) -> Bytes:
        """What admission compares with the room: bound inside PyTorch and growth outside it."""
        return Bytes(self.figures.demand)

    @property
    def unpriced(self) -> tuple[Unpriced, ...]:
        """What this rank will hold and the table does not price."""
        return self.figures.compiled.unpriced

    @property
    def terms(self) -> dict[str, Bytes]:
        """Expected bytes of each term at the expected peak."""
        return self.figures.terms(self.figures.peak)

    def terms_at(self, moment: Moment) -> dict[str, Bytes]:
        """Return the expected bytes of each term at ``moment``."""
        for stage in self.figures.stages:
            if stage[0] is moment:
                return self.figures.terms(stage)
        return {}

    def __str__(self) -> str:
        return explain(self)
