"""Identify: what a set of observations can tell apart, before anything is fitted on it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import qr

from pipeline.regress.rows import Floats, Rows

TOLERANCE = 1e-3
"""Columns that differ by less than this, relative to their length, are one to the data."""
SHARE = 1e-2
"""A column enters a group where it makes up this much of the one that depends on it."""


@dataclass(frozen=True, slots=True)
class Identified:
    """What the data separate.

    Parameters
    ----------
    rank, condition
        Of the columns scaled to unit length; the condition is over those that are seen.
    groups
        Coefficients that only move together.
    unseen
        Coefficients of which no observation has a byte.
    """

    rank: int
    condition: float
    groups: tuple[tuple[str, ...], ...]
    unseen: tuple[str, ...]

    def holds(self, name: str) -> bool:
        """Whether the data leave a coefficient open."""
        return name in self.unseen or any(name in group for group in self.groups)


def identify(
    rows: Rows, observed: Floats, names: Sequence[str], counts: Floats | None = None
) -> Identified:
    """Find collinear columns by a pivoted QR of the columns, weighed and scaled to unit length.

    The rows' triangle stands for them: it has the columns' lengths and angles, and few rows.
    ``counts`` say how many observations each row stands for.
    """
    often = np.ones(len(rows)) if counts is None else np.sqrt(counts)
    whole = rows.triangle(often / observed)
    norms = np.linalg.norm(whole, axis=0)
    seen = np.flatnonzero(norms > 0)
    unseen = tuple(names[i] for i in range(len(names)) if norms[i] == 0)
    if not len(seen):
        return Identified(0, float("inf"), (), unseen)
    scaled = whole[:, seen] / norms[seen]
    triangle, order = qr(scaled, mode="r", pivoting=True)
    diagonal = np.zeros(len(seen))
    diagonal[: min(triangle.shape)] = np.abs(np.diag(triangle))
    rank = int((diagonal > TOLERANCE * diagonal[0]).sum())
    values = np.linalg.svd(scaled, compute_uv=False)
    condition = float(values[0] / values[-1]) if values[-1] > 0 else float("inf")
    groups: list[set[str]] = []
    for place in range(rank, len(seen)):
        column = order[place]
        shares = np.linalg.lstsq(scaled[:, order[:rank]], scaled[:, column], rcond=None)[0]
        group = {names[seen[column]]}
        group |= {names[seen[order[i]]] for i, share in enumerate(shares) if abs(share) > SHARE}
        for other in [g for g in groups if g & group]:
            groups.remove(other)
            group |= other
        groups.append(group)
    found = tuple(tuple(n for n in names if n in group) for group in groups)
    return Identified(rank, condition, found, unseen)


def next_cells(
    rows: Rows, observed: Floats, names: Sequence[str], candidates: Mapping[str, Floats]
) -> list[str]:
    """Return the candidate cells that would separate most, best first.

    Each candidate is a row of bytes per copy. A candidate helps where it raises the rank, or else
    lowers the number of collinear coefficients.
    """
    before = identify(rows, observed, names)
    few = rows.triangle(1 / observed)  # stands for all rows, in as many as columns
    ones = np.ones(len(few))
    open_before = sum(len(group) for group in before.groups) + len(before.unseen)
    helps: list[tuple[int, str]] = []
    for label, row in candidates.items():
        total = float(row.sum())
        if total <= 0:
            continue
        after = identify(Rows.of(np.vstack([few, row / total])), np.append(ones, 1.0), names)
        left = sum(len(group) for group in after.groups) + len(after.unseen)
        if left < open_before or after.rank > before.rank:
            helps.append((left - after.rank, label))
    return [label for _, label in sorted(helps)]
