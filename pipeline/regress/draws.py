"""Draws: fits on groups of observations drawn with return, and the intervals that they give."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.stats import norm, t

from pipeline.regress.rows import Floats, Ints, Rows
from pipeline.regress.solve import Prior, least

MOST_GROUPS = 2000
"""Groups of a bootstrap: more are drawn in bundles."""


class Drawn(NamedTuple):
    """Draws of a bootstrap.

    Parameters
    ----------
    copies
        (draws, columns).
    telling
        (columns,) groups that each coefficient rests on, as many as if all told the same.
    """

    copies: Floats
    telling: Floats

    def interval(self, around: Floats) -> tuple[Floats, Floats]:
        """Return 95 % intervals around a fit: the draws' own, wider where few groups tell.

        By Student's quantile over the normal one, and for the groups that a mean uses up.
        """
        few = np.maximum(self.telling, 2.0)
        wider = t.ppf(0.975, few - 1) / norm.ppf(0.975) * np.sqrt(few / (few - 1))
        low, high = np.percentile(self.copies, [2.5, 97.5], axis=0)
        below, above = np.minimum(low - around, 0.0), np.maximum(high - around, 0.0)
        return np.maximum(around + wider * below, 0.0), around + wider * above


def bootstrap(
    rows: Rows,
    observed: Floats,
    *,
    groups: Ints,
    draws: int,
    seed: int,
    prior: Prior | None = None,
    weights: Floats | None = None,
) -> Drawn:
    """Refit coefficients on groups of observations that are drawn with return."""
    generator = np.random.default_rng(seed)
    names, group = np.unique(groups, return_inverse=True)
    if len(names) > MOST_GROUPS:
        names, group = np.arange(MOST_GROUPS), group % MOST_GROUPS
    base = np.ones_like(observed) if weights is None else weights
    squares, sums = _by_group(rows.scaled(1 / observed), base, group, len(names))
    count = len(names)
    times = np.array(
        [np.bincount(generator.integers(0, count, count), minlength=count) for _ in range(draws)],
        dtype=float,
    )
    drawn = (times @ squares.reshape(count, -1)).reshape(draws, rows.width, rows.width)
    found = [least(one, other, prior) for one, other in zip(drawn, times @ sums, strict=True)]
    share = np.einsum("gkk->gk", squares)
    telling = share.sum(axis=0) ** 2 / np.maximum((share**2).sum(axis=0), np.finfo(float).tiny)
    return Drawn(np.array(found), telling)


def _by_group(rows: Rows, weights: Floats, group: Ints, count: int) -> tuple[Floats, Floats]:
    """Return `Rows.squares` and `Rows.sums` of each group's rows."""
    wide, width = len(rows.wide), rows.width
    squares = np.zeros((count, width, width))
    sums = np.zeros((count, width))
    squared = weights**2
    order = np.argsort(group[:wide], kind="stable")
    ends = np.searchsorted(group[:wide][order], np.arange(count + 1))
    for place, (first, last) in enumerate(pairwise(ends)):
        part = order[first:last]
        heavy = rows.wide[part] * squared[part, None]
        squares[place] = heavy.T @ rows.wide[part]
        sums[place] = heavy.sum(axis=0)
    cell = group[wide:] * width + rows.key
    each, narrow = np.arange(width), squared[wide:]
    shape = (count, width)
    squares[:, each, each] += np.bincount(cell, rows.size**2 * narrow, count * width).reshape(shape)
    sums += np.bincount(cell, rows.size * narrow, count * width).reshape(shape)
    return squares, sums
