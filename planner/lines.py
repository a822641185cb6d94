"""Lines: every term at every moment at which it is live, and the bytes of each."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter, mul
from typing import NamedTuple, overload

from planner.coefficients import MILLI
from planner.folding import Counts, Weights
from planner.moments import Moment
from planner.units import Bytes


class Line(NamedTuple):
    """One term at one moment: copies x one copy = bytes (expected)."""

    term: str
    moment: Moment
    copies: float
    expected: Bytes


class Lines(Sequence[Line]):
    """Every line of a price; the bytes stand, a `Line` is made when it is read.

    Parameters
    ----------
    programs
        What the lines are of, in their order.
    expected
        Expected bytes of every line.
    """

    __slots__ = ("_programs", "expected")

    def __init__(self, programs: "tuple[LineProgram, ...]", expected: tuple[Bytes, ...]) -> None:
        self._programs = programs
        self.expected = expected

    def __len__(self) -> int:
        return len(self.expected)

    def __iter__(self) -> Iterator[Line]:
        labels = (label for program in self._programs for label in program.labels)
        return (Line(*label, size) for label, size in zip(labels, self.expected, strict=True))

    @overload
    def __getitem__(self, index: int) -> Line: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Line, ...]: ...
    def __getitem__(self, index: int | slice) -> Line | tuple[Line, ...]:
        return tuple(self)[index]


class LineProgram:
    """How the bytes of some lines follow from counts.

    Most terms are copies of a tensor that grows with one count: a whole factor times that count.
    Lines that are equal are worked out once. What is a sum over several counts, or is not whole, is
    summed in thousandths and rounded up.

    Parameters
    ----------
    lines
        Term, moment and copies (thousandths) of each line, and its weights of some counts.
    """

    __slots__ = ("_factors", "_of", "_places", "_sums", "labels", "terms")

    def __init__(self, lines: Iterable[tuple[str, Moment, int, Weights]]) -> None:
        products: dict[tuple[int, int], None] = {}
        sums: dict[Weights, None] = {}
        labels: list[tuple[str, Moment, float]] = []
        found: list[tuple[tuple[int, int] | None, Weights]] = []
        for term, moment, copies, weights in lines:
            labels.append((term, moment, copies / MILLI))
            found.append((_product(weights), weights))
        for product, weights in found:
            if product is None:
                sums[weights] = None
            else:
                products[product] = None
        place = {key: i for i, key in enumerate([*products, *sums])}
        self.labels = tuple(labels)
        self.terms = tuple([term for term, _, _ in labels])
        self._factors = tuple([factor for _, factor in products])
        self._of = _picker([index for index, _ in products])
        self._sums = tuple(sums)
        self._places = _picker([place[product or weights] for product, weights in found])

    def bytes(self, counts: Counts) -> tuple[Bytes, ...]:
        """Return the bytes of every line."""
        values = list(map(mul, self._factors, self._of(counts)))
        for weights in self._sums:
            total = 0
            for index, value in weights:
                total += value * counts[index]
            values.append(-(-total // MILLI))
        return self._places(values)  # type: ignore[return-value]


def _product(weights: Weights) -> tuple[int, int] | None:
    """Return the count and whole bytes of weights that are one product, else ``None``."""
    if not weights:
        return 0, 0
    (index, value), *rest = weights
    return None if rest or value % MILLI else (index, value // MILLI)


def _picker(places: Sequence[int]) -> Callable[[Sequence[int]], tuple[int, ...]]:
    """Return what picks these places, at C's pace where there are several."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda row: tuple([row[place] for place in places])
