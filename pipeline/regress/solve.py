"""Solve: non-negative fits of copies on bytes, by least squares and by linear programs.

A matrix has a row for each observation and a column for each coefficient, in bytes of one copy.
Least squares weighs errors relative to what was observed, so that small calls speak as loud as
large ones, and draws coefficients towards a prior where one is given.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog, nnls
from scipy.sparse import hstack, identity

from planner.errors import PlannerError

Floats = npt.NDArray[np.float64]

HUBER = 2.5
"""Errors beyond this many robust deviations weigh less: they keep their sign, not their size."""
OUTLIER = 6.0
"""Errors beyond this many robust deviations are reported as outliers."""
LEAST = 1e-3
"""Relative errors that are as good as none, whatever the others are."""
ROUNDS = 12
MOST_GROUPS = 2000
"""Groups of a bootstrap: more are drawn in bundles."""
JITTER = 1e-12
"""Added to squares of unit columns, so that ones that are collinear have a factor too."""


class FitError(PlannerError):
    """A set of observations that no coefficients can be fitted on."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Where coefficients are known from already: their values, and how firmly.

    ``strength`` is the relative noise of an observation over the relative spread of the prior.
    """

    values: Floats
    strength: float


def require_observations(matrix: Floats, observed: Floats) -> None:
    """Raise `FitError` where there is nothing to fit, or a figure is not a positive number."""
    if not len(observed):
        raise FitError("no observations to fit on; a sweep or a table of measured cells gives them")
    if not np.isfinite(matrix).all() or not np.isfinite(observed).all():
        raise FitError("an observation is no finite number of bytes")
    if (matrix < 0).any() or (observed <= 0).any():
        raise FitError("bytes must be positive; an observation or a size is not")


def least_squares(
    matrix: Floats, observed: Floats, prior: Prior | None = None, weights: Floats | None = None
) -> Floats:
    """Return the non-negative coefficients of least squared relative error.

    Raises
    ------
    FitError
        As `require_observations`.
    """
    require_observations(matrix, observed)
    scale = np.ones_like(observed) if weights is None else weights
    rows, target = matrix * (scale / observed)[:, None], scale.copy()
    norms = np.linalg.norm(rows, axis=0)
    norms[norms == 0] = 1.0
    if prior is not None:
        norms = np.maximum(prior.values, 1.0) ** -1.0
        rows = np.vstack([rows / norms, prior.strength * np.eye(matrix.shape[1])])
        target = np.concatenate([target, prior.strength * prior.values * norms])
    else:
        rows = rows / norms
    found: Floats = nnls(rows, target)[0] / norms
    return found


def robust(
    matrix: Floats, observed: Floats, prior: Prior | None = None, weights: Floats | None = None
) -> tuple[Floats, Floats]:
    """Return coefficients that outliers hardly move, and the weight that each observation kept."""
    base = np.ones_like(observed) if weights is None else weights
    kept = np.ones_like(observed)
    found = least_squares(matrix, observed, prior, base)
    for _ in range(ROUNDS):
        error = np.abs(matrix @ found / observed - 1)
        limit = HUBER * deviation(error)
        new = np.minimum(1.0, np.sqrt(limit / np.maximum(error, limit)))
        if np.allclose(new, kept, atol=1e-3):
            break
        kept = new
        found = least_squares(matrix, observed, prior, base * kept)
    return found, kept


def deviation(errors: Floats) -> float:
    """Return the robust standard deviation of errors: 1.4826 of their median size."""
    return max(float(1.4826 * np.median(np.abs(errors))), LEAST)


def outliers(matrix: Floats, observed: Floats, found: Floats) -> list[int]:
    """Return the observations whose relative error is far outside the others'."""
    error = matrix @ found / observed - 1
    far = np.abs(error - np.median(error)) > max(OUTLIER * deviation(error), 0.01)
    return [int(i) for i in np.flatnonzero(far)]


def quantile(matrix: Floats, observed: Floats, level: float) -> Floats:
    """Return non-negative coefficients that ``level`` of the observations lie under.

    A linear program: least sum of relative errors, those above weighing ``level`` and those below
    what is left of 1.
    """
    require_observations(matrix, observed)
    if matrix.shape[1] == 1:  # the program's solution is then a weighted quantile
        sizes = matrix[:, 0] / observed
        order = np.argsort(1 / sizes)
        share = np.cumsum(sizes[order]) / sizes.sum()
        return 1 / sizes[order][[int(np.searchsorted(share, level))]]
    rows, count = matrix / observed[:, None], len(observed)
    cost = np.concatenate(
        [np.zeros(matrix.shape[1]), np.full(count, level), np.full(count, 1 - level)]
    )
    equal = hstack([rows, identity(count), -identity(count)], format="csc")
    return _solved(linprog(cost, A_eq=equal, b_eq=np.ones(count), method="highs"), matrix.shape[1])


def envelope(matrix: Floats, observed: Floats, least: Floats | None = None) -> Floats:
    """Return the coefficients of least total excess that no observation lies above.

    ``least`` holds each coefficient from below.
    """
    require_observations(matrix, observed)
    rows = matrix / observed[:, None]
    low = np.zeros(matrix.shape[1]) if least is None else least
    return _solved(
        linprog(
            rows.sum(axis=0),
            A_ub=-rows,
            b_ub=-np.ones(len(observed)),
            bounds=[(float(bound), None) for bound in low],
            method="highs",
        ),
        matrix.shape[1],
    )


def _solved(result: object, count: int) -> Floats:
    if not getattr(result, "success", False):
        raise FitError(f"the linear program has no solution: {getattr(result, 'message', result)}")
    return np.asarray(getattr(result, "x"))[:count]  # noqa: B009


def conformal(ratios: Floats, miss: float) -> float:
    """Return the one-sided conformal factor: observed over expected, exceeded at rate ``miss``.

    Raises
    ------
    FitError
        Where there are too few ratios to promise that rate.
    """
    place = int(np.ceil((len(ratios) + 1) * (1 - miss)))
    if place > len(ratios):
        raise FitError(
            f"{len(ratios)} held-out cells cannot promise a miss rate of {miss:g}; "
            f"it takes {int(np.ceil(1 / miss)) - 1}"
        )
    return float(np.sort(ratios)[place - 1])


def bootstrap(
    matrix: Floats,
    observed: Floats,
    *,
    groups: npt.NDArray[np.int64],
    draws: int,
    seed: int,
    prior: Prior | None = None,
    weights: Floats | None = None,
) -> Floats:
    """Return coefficients (draws, columns) refitted on groups of observations drawn with return."""
    generator = np.random.default_rng(seed)
    names, inverse = np.unique(groups, return_inverse=True)
    if len(names) > MOST_GROUPS:
        names, inverse = np.arange(MOST_GROUPS), inverse % MOST_GROUPS
    base = np.ones_like(observed) if weights is None else weights
    width = matrix.shape[1]
    unit = np.maximum(prior.values, 1.0) if prior is not None else np.ones(width)
    rows = matrix * (base / observed)[:, None] * unit
    norms = np.linalg.norm(rows, axis=0)
    norms[norms == 0] = 1.0
    rows = rows / norms
    squares = np.zeros((len(names), width, width))
    sums = np.zeros((len(names), width))
    order = np.argsort(inverse, kind="stable")
    ends = np.searchsorted(inverse[order], np.arange(len(names) + 1))
    for group, (first, last) in enumerate(pairwise(ends)):
        part = order[first:last]
        squares[group] = rows[part].T @ rows[part]
        sums[group] = rows[part].T @ base[part]
    pull = np.full(width, JITTER)
    toward = np.zeros(width)
    if prior is not None:
        pull = pull + (prior.strength / norms) ** 2
        toward = prior.strength**2 * prior.values / unit / norms
    found = np.empty((draws, width))
    for draw in range(draws):
        times = np.bincount(generator.integers(0, len(names), len(names)), minlength=len(names))
        total = np.tensordot(times, squares, axes=1) + np.diag(pull)
        lower = np.linalg.cholesky(total)
        target = np.linalg.solve(lower, times @ sums + toward)
        found[draw] = nnls(lower.T, target)[0] / norms * unit
    return found
