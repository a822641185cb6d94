"""Held out: what a fit says of the models, sizes and topologies that it has not seen."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.regress.copies import Arguments, solve_copies
from pipeline.regress.design import Design
from pipeline.regress.rows import Bools, Floats, Ints
from pipeline.regress.sighting import Sightings

FACTS = ("model", "size", "topology")
LARGE = 1000
"""Tokens from which on a call is large: smaller ones are reported apart."""
ENOUGH = 10_000
"""Sightings that a fit without a kind is made on; of more, evenly spaced ones are taken."""


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """Expected peaks of the sightings that have one, each from a fit without its own kind.

    ``sighting`` are their places.
    """

    fact: str
    sighting: Ints
    expected: Floats
    kinds: int


def hold_out(sightings: Sightings, design: Design, arguments: Arguments) -> tuple[HeldOut, ...]:
    """Fit without each model, size and topology in turn; facts with one kind alone are left out."""
    found = []
    whole = design.whole
    places = design.peaks.sighting[whole]
    enough = design.sighting % -(-len(sightings) // ENOUGH) == 0
    for fact in FACTS:
        kind = sightings.fact(fact).code
        kinds = np.unique(kind[design.sighting])
        if len(kinds) < 2:
            continue
        sizes = np.zeros(len(whole))
        for one in kinds:
            rest: Bools = enough & (kind[design.sighting] != one)
            if not rest.any():  # all that is evenly spaced is of this kind
                rest = kind[design.sighting] != one
            copies = solve_copies(design, arguments, rest).copies
            here = kind[places] == one
            sizes[here] = design.peaks.expected(copies)[whole][here]
        found.append(HeldOut(fact, places, sizes, len(kinds)))
    return tuple(found)


def errors(sightings: Sightings, places: Ints, sizes: Floats) -> Mapping[str, float | int]:
    """Return counts, median and worst relative error of large calls, and of small ones apart."""
    large = sightings.tokens[places] >= LARGE
    error = np.abs(sizes / sightings.observed[places] - 1)
    figures: dict[str, float | int] = {}
    for name, some in (("large", large), ("small", ~large)):
        figures[f"{name}_cells"] = int(some.sum())
        if some.any():
            figures[f"{name}_median_error"] = round(float(np.median(error[some])), 5)
            figures[f"{name}_worst_error"] = round(float(error[some].max()), 5)
    return figures
