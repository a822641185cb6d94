"""Copies: fits the copies of a table on sightings, beginning at the table's own as a prior.

A peak is the fullest of several moments, and which one depends on the copies: the fit chooses the
moment of each peak by the copies that it has, fits, and chooses again until nothing changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.regress.identify import Identified, identify
from pipeline.regress.sighting import Design, Sighting, Target, make_design
from pipeline.regress.solve import (
    FitError,
    Floats,
    Prior,
    bootstrap,
    outliers,
    robust,
)
from planner.coefficients import MILLI, Coefficients

NOISE = 0.015
"""Relative noise of a peak: rounding of the caching allocator's blocks."""
FLOOR = 20e6
"""Bytes of noise whatever the size: small blocks, autotuning."""
ROUNDS = 8
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
    at_prior
        Names that the data leave where the derivation put them.
    outliers
        Observations far from the fit: reported, weighed less, never dropped.
    """

    design: Design
    copies: Floats
    low: Floats
    high: Floats
    identified: Identified
    at_prior: tuple[str, ...]
    outliers: tuple[str, ...]

    @property
    def table(self) -> Coefficients:
        """The table with the fitted copies, in thousandths."""
        return with_copies(self.design, self.copies, self.low, self.high)


def expected(design: Design, copies: Floats) -> Floats:
    """Return the expected bytes of every target."""
    fullest = np.array([float((shape.rows @ copies).max()) for shape in design.shapes])
    return fullest[[target.shape for target in design.targets]]


def _weights(targets: Sequence[Target], floor: float) -> Floats:
    size = np.array([t.observed for t in targets], dtype=float)
    whole = np.array([2.0 if t.phase is None else 1.0 for t in targets])
    weights: Floats = whole * NOISE * size / np.hypot(NOISE * size, floor)
    return weights


class Solution(NamedTuple):
    """Copies, the rows of the moments that they choose, and each target's weight in the end."""

    copies: Floats
    matrix: Floats
    weights: Floats


def solve_copies(design: Design, targets: Sequence[Target], arguments: Arguments) -> Solution:
    """Fit copies on some targets of a design; outliers hardly move them."""
    copies = design.prior
    observed = np.array([t.observed for t in targets], dtype=float)
    weights = _weights(targets, arguments.floor_bytes)
    prior = Prior(design.prior, arguments.strength) if arguments.strength else None
    places = np.array([t.shape for t in targets])
    chosen: list[int] = []
    kept = np.ones_like(observed)
    matrix = np.zeros((0, len(copies)))
    for _ in range(ROUNDS):
        now = [int(np.argmax(shape.rows @ copies)) for shape in design.shapes]
        if now == chosen:
            break
        chosen = now
        rows = np.array([shape.rows[i] for shape, i in zip(design.shapes, now, strict=True)])
        matrix = rows[places]
        copies, kept = robust(matrix, observed, prior, weights)
    return Solution(copies, matrix, weights * kept)


def fit_copies(
    sightings: Sequence[Sighting], table: Coefficients, arguments: Arguments | None = None
) -> Fitted:
    """Fit the copies of a table on sightings.

    Raises
    ------
    FitError
        Where there is nothing to fit on, or nothing that the table prices.
    """
    arguments = arguments or Arguments()
    design = make_design(sightings, table)
    if not design.targets:
        raise FitError(
            f"{len(sightings)} sightings hold no figure that {table.name} prices; "
            "name the table of their recompute mode"
        )
    targets = design.targets
    observed = np.array([t.observed for t in targets], dtype=float)
    copies, matrix, weights = solve_copies(design, targets, arguments)
    identified = identify(matrix, observed, design.names)
    at_prior: tuple[str, ...] = ()
    if arguments.strength:
        at_prior = _still_at_prior(design, matrix * (weights / observed)[:, None], arguments)
        prior = Prior(design.prior, arguments.strength)
    else:
        copies, prior = _held(design, matrix, observed, weights, identified)
        at_prior = tuple(n for n in design.names if identified.holds(n))
    groups = np.array([t.sighting for t in targets], dtype=np.int64)
    low, high = _interval(matrix, observed, groups, arguments, prior, weights, copies)
    for place, name in enumerate(design.names):
        if identified.holds(name) and not arguments.strength:
            low[place] = high[place] = copies[place]
    far = outliers(matrix, observed, copies)
    return Fitted(
        design=design,
        copies=copies,
        low=low,
        high=high,
        identified=identified,
        at_prior=at_prior,
        outliers=tuple(_describe(sightings, targets[i], matrix[i] @ copies) for i in far),
    )


def _describe(sightings: Sequence[Sighting], target: Target, size: float) -> str:
    phase = target.phase.value if target.phase is not None else "peak"
    error = size / target.observed - 1
    return f"{sightings[target.sighting].label}: {phase} fitted {error:+.1%} of observed"


def _interval(
    matrix: Floats,
    observed: Floats,
    groups: npt.NDArray[np.int64],
    arguments: Arguments,
    prior: Prior | None,
    weights: Floats,
    copies: Floats,
) -> tuple[Floats, Floats]:
    if not arguments.draws:
        return copies.copy(), copies.copy()
    draws = bootstrap(
        matrix,
        observed,
        groups=groups,
        draws=arguments.draws,
        seed=arguments.seed,
        prior=prior,
        weights=weights,
    )
    low, high = np.percentile(draws, [2.5, 97.5], axis=0)
    return np.minimum(low, copies), np.maximum(high, copies)


def _held(
    design: Design, matrix: Floats, observed: Floats, weights: Floats, identified: Identified
) -> tuple[Floats, Prior]:
    """Fit with what cannot be told apart held at its prior, firmly."""
    held = np.array([identified.holds(name) for name in design.names])
    rest = np.maximum(observed - matrix[:, held] @ design.prior[held], 0.0)
    copies = design.prior
    use = rest > 0
    if (~held).any() and use.any():
        scale = weights[use] * rest[use] / observed[use]
        copies[~held] = robust(matrix[use][:, ~held], rest[use], None, scale)[0]
    return copies, Prior(np.where(held, design.prior, copies), 1e-6)


def _still_at_prior(design: Design, rows: Floats, arguments: Arguments) -> tuple[str, ...]:
    scaled = rows * np.maximum(design.prior, 1.0)
    strength = arguments.strength**2
    left = strength * np.diag(np.linalg.inv(scaled.T @ scaled + strength * np.eye(scaled.shape[1])))
    return tuple(n for n, share in zip(design.names, left, strict=True) if share > PRIOR_SHARE)


def with_copies(
    design: Design, copies: Floats, low: Floats | None = None, high: Floats | None = None
) -> Coefficients:
    """Return the design's table with other copies, rounded to thousandths, and their intervals."""
    entries = list(design.table.copies)
    for place, key in enumerate(design.keys):
        entry = design.table.copies[key.entry]
        moments = [moment for moment, milli in entry.at.items() if milli == key.milli]
        value = round(float(copies[place]) * MILLI)
        at = {**entries[key.entry].at, **dict.fromkeys(moments, value)}
        interval = dict(entries[key.entry].interval)
        if low is not None and high is not None:
            ends = (
                min(round(float(low[place]), 3), value / MILLI),
                max(round(float(high[place]), 3), value / MILLI),
            )
            interval |= dict.fromkeys(moments, ends)
        entries[key.entry] = replace(entries[key.entry], at=at, interval=interval)
    return replace(design.table, copies=tuple(entries))
