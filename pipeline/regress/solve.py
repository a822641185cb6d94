"""Solve: non-negative fits of copies on bytes, by least squares and by linear programs.

A matrix has a row for each observation and a column for each coefficient, in bytes of one copy.
Least squares weighs errors relative to what was observed, so that small calls speak as loud as
large ones, and draws coefficients towards a prior where one is given.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog, nnls
from scipy.sparse import hstack, identity

from pipeline.regress.rows import JITTER, Floats, Ints, Rows
from planner.errors import PlannerError

HUBER = 2.5
"""Errors beyond this many robust deviations weigh less."""
OUTLIER = 6.0
"""Errors beyond this many robust deviations are reported as outliers, and weigh nothing."""
LEAST = 1e-3
"""Relative errors that are as good as none, whatever the others are."""
ROUNDS = 12
STILL = 1e-5
"""Coefficients that move by less than this, relative to 1 or to themselves, have settled."""


class FitError(PlannerError):
    """A set of observations that no coefficients can be fitted on."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Where coefficients are known from already: their values, and how firmly.

    ``strength`` is the relative noise of an observation over the relative spread of the prior.
    """

    values: Floats
    strength: float


def require_observations(rows: Rows, observed: Floats) -> None:
    """Raise `FitError` where there is nothing to fit, or a figure is not a positive number."""
    if not len(observed):
        raise FitError("no observations to fit on; a sweep or a table of measured cells gives them")
    if not np.isfinite(rows.wide).all() or not np.isfinite(observed).all():
        raise FitError("an observation is no finite number of bytes")
    if (rows.wide < 0).any() or (rows.size < 0).any() or (observed <= 0).any():
        raise FitError("bytes must be positive; an observation or a size is not")


def least_squares(
    rows: Rows, observed: Floats, prior: Prior | None = None, weights: Floats | None = None
) -> Floats:
    """Return the non-negative coefficients of least squared relative error.

    Raises
    ------
    FitError
        As `require_observations`.
    """
    require_observations(rows, observed)
    scale = np.ones_like(observed) if weights is None else weights
    relative = rows.scaled(1 / observed)
    return least(relative.squares(scale), relative.sums(scale), prior)


def least(squares: Floats, sums: Floats, prior: Prior | None) -> Floats:
    """Return the non-negative minimum of a sum of squares, drawn towards a prior."""
    width = len(sums)
    unit = np.maximum(prior.values, 1.0) if prior is not None else np.ones(width)
    squares, sums = squares * np.outer(unit, unit), sums * unit
    if prior is not None:
        squares = squares + prior.strength**2 * np.eye(width)
        sums = sums + prior.strength**2 * prior.values / unit
    norms = np.sqrt(np.diag(squares))
    norms[norms == 0] = 1.0
    lower = np.linalg.cholesky(squares / np.outer(norms, norms) + JITTER * np.eye(width))
    found: Floats = nnls(lower.T, np.linalg.solve(lower, sums / norms))[0] / norms * unit
    return found


def robust(
    rows: Rows,
    observed: Floats,
    prior: Prior | None = None,
    weights: Floats | None = None,
    start: Floats | None = None,
    counts: Floats | None = None,
) -> tuple[Floats, float]:
    """Return coefficients that outliers hardly move, and the error from which on one weighs less.

    Parameters
    ----------
    start
        Coefficients that are near already.
    counts
        How many observations each row stands for; by default one.
    """
    require_observations(rows, observed)
    base = np.ones_like(observed) if weights is None else weights
    relative = rows.scaled(1 / observed)

    def solve(scale: Floats) -> Floats:
        return least(relative.squares(scale), relative.sums(scale), prior)

    found = solve(base) if start is None else start
    limit = np.inf
    for weigh in (bounded, kept):
        for _ in range(ROUNDS):
            error = np.abs(relative.times(found) - 1)
            limit = HUBER * deviation(error, counts)
            before, found = found, solve(base * weigh(error, limit))
            if (np.abs(found - before) <= STILL * np.maximum(before, 1.0)).all():
                break
    return found, limit


def bounded(error: Floats, limit: float) -> Floats:
    """Return weights under which an error beyond a limit keeps its sign, not its size."""
    weight: Floats = np.sqrt(limit / np.maximum(np.abs(error), limit))
    return weight


def kept(error: Floats, limit: float) -> Floats:
    """Return weights as `bounded` has them, less and less beyond the limit, none for outliers.

    Where outliers lie on one side, what is left of their pull would move a fit on many figures by
    more than its interval is wide.
    """
    far = limit * OUTLIER / HUBER
    left = np.clip((far - np.abs(error)) / (far - limit), 0.0, 1.0) if np.isfinite(limit) else 1.0
    weight: Floats = bounded(error, limit) * np.sqrt(left)
    return weight


def deviation(errors: Floats, counts: Floats | None = None) -> float:
    """Return the robust standard deviation of errors: 1.4826 of their median size.

    ``counts`` say how often each error occurs.
    """
    sizes = np.abs(errors)
    if counts is None:
        middle = float(np.median(sizes))
    else:
        order = np.argsort(sizes)
        reached = np.cumsum(counts[order])
        middle = float(sizes[order][int(np.searchsorted(reached, reached[-1] / 2))])
    return max(1.4826 * middle, LEAST)


def outliers(rows: Rows, observed: Floats, found: Floats) -> Ints:
    """Return the observations whose relative error is far outside the others'."""
    error = rows.times(found) / observed - 1
    far = np.abs(error - np.median(error)) > max(OUTLIER * deviation(error), 0.01)
    return np.flatnonzero(far)


def quantile(matrix: Floats, observed: Floats, level: float) -> Floats:
    """Return non-negative coefficients that ``level`` of the observations lie under.

    A linear program: least sum of relative errors, those above weighing ``level`` and those below
    what is left of 1.
    """
    require_observations(Rows.of(matrix), observed)
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
    require_observations(Rows.of(matrix), observed)
    if matrix.shape[1] == 1 and least is None:
        return np.array([float((observed / matrix[:, 0]).max())])
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
