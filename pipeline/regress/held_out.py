"""Held out: what a fit says of the models, sizes and topologies that it has not seen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.regress.copies import Arguments, expected, solve_copies
from pipeline.regress.sighting import Design, Sighting, make_design
from pipeline.regress.solve import Floats
from planner.coefficients import Coefficients

FACTS = ("model", "size", "topology")
LARGE = 1000
"""Tokens from which on a call is large: smaller ones are reported apart."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Expected peaks of the sightings that have one, each from a fit without its own kind."""

    fact: str
    places: tuple[int, ...]
    expected: Floats
    kinds: int


def peaks(design: Design) -> list[int]:
    """Return the places of the targets that are peaks of whole calls."""
    return [i for i, target in enumerate(design.targets) if target.phase is None]


def hold_out(
    sightings: Sequence[Sighting], table: Coefficients, arguments: Arguments
) -> tuple[HeldOut, ...]:
    """Fit without each model, size and topology in turn; facts with one kind alone are left out."""
    design = make_design(sightings, table)
    found = []
    whole = peaks(design)
    for fact in FACTS:
        kinds = [sightings[t.sighting].facts.get(fact, "") for t in design.targets]
        names = sorted(set(kinds))
        if len(names) < 2:
            continue
        sizes = np.zeros(len(design.targets))
        for name in names:
            rest = [t for t, kind in zip(design.targets, kinds, strict=True) if kind != name]
            copies = solve_copies(design, rest, arguments).copies
            here = np.array([kind == name for kind in kinds])
            sizes[here] = expected(design, copies)[here]
        found.append(
            HeldOut(
                fact, tuple(design.targets[i].sighting for i in whole), sizes[whole], len(names)
            )
        )
    return tuple(found)


def errors(
    sightings: Sequence[Sighting], places: Sequence[int], sizes: Floats
) -> Mapping[str, float | int]:
    """Return counts, median and worst relative error of large calls, and of small ones apart."""
    observed = np.array([sightings[i].seen[None] for i in places], dtype=float)
    large = np.array([sightings[i].work.tokens >= LARGE for i in places])
    error = np.abs(sizes / observed - 1)
    figures: dict[str, float | int] = {}
    for name, some in (("large", large), ("small", ~large)):
        figures[f"{name}_cells"] = int(some.sum())
        if some.any():
            figures[f"{name}_median_error"] = round(float(np.median(error[some])), 5)
            figures[f"{name}_worst_error"] = round(float(error[some].max()), 5)
    return figures
