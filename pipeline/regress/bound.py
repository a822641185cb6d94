"""Bound: a factor and bytes on what is expected, such that no observed peak lies above.

The factor covers what large calls showed beyond the least that a fit without them expected, and
half the noise of a peak; the bytes cover what small calls showed beyond that, such as workspaces
that a first call makes and lets go of.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.regress.copies import FLOOR
from pipeline.regress.held_out import LARGE, HeldOut
from pipeline.regress.rows import Floats, Ints
from pipeline.regress.sighting import Sightings
from pipeline.regress.solve import FitError, conformal, envelope, quantile
from planner.coefficients import MILLI, Coefficients

SLACK = 0.0075
"""Added to the worst shortfall seen: half of the noise of a peak (`copies.NOISE`)."""
MISS = 0.05
"""Rate at which the conformal factor may be exceeded."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A fitted bound.

    Parameters
    ----------
    margin, call_bytes
        The factor, in whole thousandths, and the bytes beside it.
    conformal
        The one-sided conformal factor of large calls at `MISS`; ``None`` where they are too few.
    quantile
        The factor alone that all but `MISS` of the calls, small ones too, lie under.
    """

    margin: float
    call_bytes: int
    conformal: float | None
    quantile: float

    def on(self, table: Coefficients) -> Coefficients:
        """Return a table with this bound."""
        return replace(table, margin_milli=round(self.margin * MILLI), call_bytes=self.call_bytes)


def fit_bound(sightings: Sightings, fitted: Floats, places: Ints, held: Sequence[HeldOut]) -> Bound:
    """Fit the bound on peaks, given what the fit expects and what fits without them expected."""
    observed = sightings.observed[places]
    least = np.min([fitted, *(one.expected for one in held)], axis=0)
    large = sightings.tokens[places] >= LARGE
    if not large.any():
        large = np.ones_like(large)
    highest = float(envelope(least[large][:, None], observed[large])[0])
    margin = math.ceil((max(highest, 1.0) + SLACK) * MILLI) / MILLI
    missing = max(0.0, float((observed - margin * least).max()))
    beside = math.ceil(missing + FLOOR) if missing else 0
    try:
        factor: float | None = round(conformal(observed[large] / least[large], MISS), 5)
    except FitError:
        factor = None
    typical = float(quantile(least[:, None], observed, 1 - MISS)[0])
    return Bound(margin, beside, factor, round(typical, 5))
