"""Allowance on routed rows: a fitted quantile of measured imbalance, with its interval.

An imbalance is the most rows that arrived at a layer of one call, over the rows expected there
(measured routing) or over an even share (routing that is not known). Calls of one cell share
weights and text, so that the interval draws cells, not calls.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from pipeline.regress.bound import MISS
from pipeline.regress.rows import Floats, Ints
from pipeline.regress.sighting import Sightings
from pipeline.regress.solve import FitError, conformal
from planner.routing import Allowance

FEWEST_CELLS = 5
"""Cells from which on an imbalance is more than those cells' own."""
DRAWS = 200
SEED = 913


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantile:
    """A one-sided conformal quantile of imbalances.

    Parameters
    ----------
    factor
        Exceeded at rate `pipeline.regress.bound.MISS`; ``None`` where calls or cells are too few.
    low, high
        Its 95 % interval, over cells drawn with return.
    """

    calls: int
    cells: int
    factor: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Quantiles of rows over those expected, and over an even share."""

    measured: Quantile
    balanced: Quantile

    def on(self, prior: Allowance) -> Allowance:
        """Return an allowance with the fitted factors; the prior's where there is none."""
        found = prior
        for name in ("measured", "balanced"):
            factor = getattr(self, name).factor
            if factor is not None:
                found = replace(found, **{name: max(1.0, math.ceil(factor * 100) / 100)})
        return found

    def document(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"miss": MISS, **asdict(self)}


def fit_allowance(sightings: Sightings) -> Rows:
    """Fit both quantiles on the calls at ep > 1 whose rows were counted."""
    use = np.isfinite(sightings.arrived).all(axis=1)
    cell = sightings.cell.code[use]
    over_expected, over_even = sightings.arrived[use].T
    return Rows(measured=_quantile(over_expected, cell), balanced=_quantile(over_even, cell))


def _quantile(ratios: Floats, cell: Ints) -> Quantile:
    names, of = np.unique(cell, return_inverse=True)
    calls, cells = len(ratios), len(names)
    try:
        factor = conformal(ratios, MISS)
    except FitError:
        return Quantile(calls=calls, cells=cells)
    if cells < FEWEST_CELLS:
        return Quantile(calls=calls, cells=cells)
    order = np.argsort(ratios)
    generator = np.random.default_rng(SEED)
    drawn = np.empty(DRAWS)
    for draw in range(DRAWS):
        times = np.bincount(generator.integers(0, cells, cells), minlength=cells)[of[order]]
        reached = np.cumsum(times)
        place = np.searchsorted(reached, (1 - MISS) * reached[-1])
        drawn[draw] = ratios[order[min(int(place), calls - 1)]]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Quantile(
        calls=calls,
        cells=cells,
        factor=round(factor, 4),
        low=round(min(float(low), factor), 4),
        high=round(max(float(high), factor), 4),
    )
