"""Copies: fits the copies of a table on sightings, beginning at the table's own as a prior.

A peak is the fullest of several moments, and which one depends on the copies: the fit chooses the
moment of each peak by the copies that it has, fits, and chooses again until nothing changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.regress.design import Design, make_design
from pipeline.regress.draws import bootstrap
from pipeline.regress.fitted_table import with_copies
from pipeline.regress.identify import Identified, identify
from pipeline.regress.outlying import name_outliers
from pipeline.regress.rows import Bools, Floats, Ints, Rows
from pipeline.regress.sighting import Sightings
from pipeline.regress.solve import STILL, FitError, Prior, kept, robust
from planner.coefficients import Coefficients

NOISE = 0.015
"""Relative noise of a peak: rounding of the caching allocator's blocks."""
FLOOR = 20e6
"""Bytes of noise whatever the size: small blocks, autotuning."""
WHOLE = 2.0
"""What the peak of a whole call weighs beside a figure of a phase or a term."""
ALIKE, STEPS = 2e-5, 2**40
"""Relative width within which terms' figures are solved as one row, and room for such widths."""
ROUNDS = 8
HARDLY = 1e-6
"""Strength that decides only where data say nothing."""
NOTHING = Identified(0, float("inf"), (), ())
PRIOR_SHARE = 0.5
"""A coefficient whose variance is still this much of its prior's is said to stay there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    """Arguments of a fit, all of which a certificate repeats.

    Parameters
    ----------
    strength
        Relative noise of an observation over the relative spread of the prior (0: no prior).
    floor_bytes
        Noise of an observation whatever its size, beside `NOISE`.
    draws, seed
        Of the bootstrap.
    """

    strength: float = 0.4
    floor_bytes: float = FLOOR
    draws: int = 200
    seed: int = 913


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """Fitted copies.

    Parameters
    ----------
    copies, low, high
        One figure a coefficient of the design; the interval holds 95 % of the bootstrap's draws.
    resolution
        What a figure's floor of noise is in copies: a ledger's rounding, which no draw shows.
    at_prior
        Names that the data leave where the derivation put them.
    outliers
        Observations far from the fit: reported, weighed less, never dropped.
    """

    design: Design
    copies: Floats
    low: Floats
    high: Floats
    resolution: Floats
    identified: Identified
    at_prior: tuple[str, ...]
    outliers: tuple[str, ...]

    @property
    def table(self) -> Coefficients:
        """The table with the fitted copies, in thousandths."""
        return with_copies(self.design, self.copies, self.low, self.high)


class Solution(NamedTuple):
    """Copies, the moments that they choose, the error that is far, and what is separated."""

    copies: Floats
    chosen: Ints
    limit: float
    identified: Identified


class _Figures(NamedTuple):
    """Figures as they are solved: of terms, those of one coefficient and ratio are one row."""

    rows: Rows
    observed: Floats
    weights: Floats
    counts: Floats


def solve_copies(design: Design, arguments: Arguments, use: Bools | None = None) -> Solution:
    """Fit copies on some figures of a design, by default all; outliers hardly move them.

    Without a prior, what the data cannot separate is held where the table has it.
    """
    use = np.ones(len(design.observed), dtype=bool) if use is None else use
    terms = _bundled(design, arguments.floor_bytes, use)
    found = Solution(design.prior, np.zeros(0, dtype=np.int64), np.inf, NOTHING)
    for number in range(ROUNDS):
        chosen = design.peaks.fullest(found.copies)
        if np.array_equal(chosen, found.chosen):
            break
        start = found.copies if number else None
        figures = _figures(design, chosen, terms, arguments.floor_bytes, use)
        identified = identify(figures.rows, figures.observed, design.names, figures.counts)
        if arguments.strength:
            prior = Prior(design.prior, arguments.strength)
            rows, observed, weights, counts = figures
            copies, limit = robust(rows, observed, prior, weights, start, counts)
        else:
            held = np.array([identified.holds(name) for name in design.names])
            copies, limit = _free(design.prior, held, figures, start)
        settled = number and (np.abs(copies - found.copies) <= STILL).all()
        found = Solution(copies, chosen, limit, identified)
        if settled:
            break
    return found


def _bundled(design: Design, floor: float, use: Bools) -> tuple[Ints, Floats, Floats, Floats]:
    """Return coefficient, mean ratio, weight and count of terms' figures that are alike."""
    mine = use[len(design.peaks.observed) :]
    key, observed = design.term_key[mine], design.term_observed[mine]
    ratio = design.term_size[mine] / observed
    step = np.round(np.log(ratio) / ALIKE).astype(np.int64)
    _, bundle = np.unique(key * STEPS + step + STEPS // 2, return_inverse=True)
    squared = weight_of(observed, floor) ** 2
    total = np.bincount(bundle, squared)
    mean = np.bincount(bundle, squared * ratio) / total
    counts = np.bincount(bundle).astype(float)
    first = np.zeros(len(total), dtype=np.int64)
    first[bundle] = key
    return first, mean, np.sqrt(total), counts


def _figures(
    design: Design,
    chosen: Ints,
    terms: tuple[Ints, Floats, Floats, Floats],
    floor: float,
    use: Bools,
) -> _Figures:
    key, ratio, weights, counts = terms
    mine = use[: len(design.peaks.observed)]
    observed = design.peaks.observed[mine]
    whole = np.where(design.peaks.is_whole[mine], WHOLE, 1.0)
    return _Figures(
        Rows(design.peaks.rows[chosen[mine]], key, ratio),
        np.concatenate([observed, np.ones(len(key))]),
        np.concatenate([whole * weight_of(observed, floor), weights]),
        np.concatenate([np.ones(len(observed)), counts]),
    )


def weight_of(observed: Floats, floor: float) -> Floats:
    """Return what a relative error weighs, of figures that have a floor of noise."""
    weights: Floats = NOISE * observed / np.hypot(NOISE * observed, floor)
    return weights


def _free(
    prior: Floats, held: Bools, figures: _Figures, start: Floats | None
) -> tuple[Floats, float]:
    """Fit what is not held on what the held copies leave of each figure."""
    rows, observed, weights, counts = figures
    rest = np.maximum(observed - rows.times(np.where(held, prior, 0.0)), 0.0)
    copies = prior.copy()
    use = rest > 0
    use[len(rows.wide) :] &= ~held[rows.key]  # a term that is held says nothing of the others
    if held.all() or not use.any():
        return copies, np.inf
    scale = weights[use] * rest[use] / observed[use]
    near = None if start is None else start[~held]
    some = rows.take(use, ~held)
    copies[~held], limit = robust(some, rest[use], None, scale, near, counts[use])
    return copies, limit


def fit_copies(
    sightings: Sightings, table: Coefficients, arguments: Arguments | None = None
) -> Fitted:
    """Fit the copies of a table on sightings.

    Raises
    ------
    FitError
        Where there is nothing to fit on, or nothing that the table prices.
    """
    return fit_design(make_design(sightings, table), sightings.labels, arguments or Arguments())


def fit_design(design: Design, labels: Sequence[str], arguments: Arguments) -> Fitted:
    """Fit the copies of a design; ``labels`` name its sightings. Raises as `fit_copies`."""
    observed = design.observed
    if not len(observed):
        raise FitError(
            f"{len(labels)} sightings hold no figure that {design.table.name} prices; "
            "name the table of their recompute mode"
        )
    copies, chosen, limit, identified = solve_copies(design, arguments)
    rows = design.at(chosen)
    weights = weight_of(observed, arguments.floor_bytes)
    weights[design.whole] *= WHOLE
    weights *= kept(rows.times(copies) / observed - 1, limit)
    held = np.array([identified.holds(name) for name in design.names])
    if arguments.strength:
        at_prior = _still_at_prior(design, rows.scaled(1 / observed), weights, arguments)
        prior = Prior(design.prior, arguments.strength)
    else:
        at_prior = tuple(name for name, stays in zip(design.names, held, strict=True) if stays)
        prior = Prior(np.where(held, design.prior, copies), HARDLY)
    low, high = _interval(design, rows, arguments, prior, weights, copies)
    if not arguments.strength:
        low[held] = high[held] = copies[held]
    return Fitted(
        design=design,
        copies=copies,
        low=low,
        high=high,
        resolution=_resolution(rows, weights, arguments.floor_bytes),
        identified=identified,
        at_prior=at_prior,
        outliers=name_outliers(labels, design, rows, copies),
    )


def _resolution(rows: Rows, weights: Floats, floor: float) -> Floats:
    """Return the copies that a floor of bytes makes of each coefficient, as figures weigh.

    Of figures of its term alone, where there are any.
    """
    wide, squared = len(rows.wide), weights**2
    share = np.bincount(rows.key, squared[wide:] * floor / rows.size, rows.width)
    total = np.bincount(rows.key, squared[wide:], rows.width)
    for place in np.flatnonzero(total == 0):
        size = rows.wide[:, place]
        has = size > 0
        share[place] = (squared[:wide][has] * floor / size[has]).sum()
        total[place] = squared[:wide][has].sum()
    resolution: Floats = share / np.where(total > 0, total, 1.0)
    return resolution


def _interval(
    design: Design,
    rows: Rows,
    arguments: Arguments,
    prior: Prior | None,
    weights: Floats,
    copies: Floats,
) -> tuple[Floats, Floats]:
    if not arguments.draws:
        return copies.copy(), copies.copy()
    drawn = bootstrap(
        rows,
        design.observed,
        groups=design.sighting,
        draws=arguments.draws,
        seed=arguments.seed,
        prior=prior,
        weights=weights,
    )
    return drawn.interval(copies)


def _still_at_prior(
    design: Design, relative: Rows, weights: Floats, arguments: Arguments
) -> tuple[str, ...]:
    unit = np.maximum(design.prior, 1.0)
    squares = relative.squares(weights) * np.outer(unit, unit)
    strength = arguments.strength**2
    left = strength * np.diag(np.linalg.inv(squares + strength * np.eye(len(unit))))
    return tuple(n for n, share in zip(design.names, left, strict=True) if share > PRIOR_SHARE)
