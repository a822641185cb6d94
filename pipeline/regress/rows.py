"""Rows: observations over bytes of one copy, where most have the bytes of one coefficient alone."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

AT_ONCE = 32_768
"""Rows whose products are summed together."""
JITTER = 1e-12
"""Added to squares of unit columns, so that ones that are collinear have a factor too."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Bytes of one copy: rows over all coefficients, then rows that have one coefficient alone.

    Parameters
    ----------
    wide
        (rows, coefficients).
    key, size
        (rows,) the coefficient of each further row, and its bytes.
    """

    wide: Floats
    key: Ints
    size: Floats

    @classmethod
    def of(cls, matrix: Floats) -> "Rows":
        """Take rows over all coefficients."""
        return cls(matrix, np.zeros(0, dtype=np.int64), np.zeros(0))

    def __len__(self) -> int:
        return len(self.wide) + len(self.key)

    @property
    def width(self) -> int:
        """Number of coefficients."""
        return int(self.wide.shape[1])

    def times(self, copies: Floats) -> Floats:
        """Return the bytes that copies make of every row."""
        return np.concatenate([self.wide @ copies, self.size * copies[self.key]])

    def scaled(self, factor: Floats) -> "Rows":
        """Return every row times a factor of its own."""
        wide = len(self.wide)
        return Rows(self.wide * factor[:wide, None], self.key, self.size * factor[wide:])

    def take(self, rows: Bools, columns: Bools) -> "Rows":
        """Return some rows over some coefficients; a row's other bytes are left out."""
        if rows.all() and columns.all():
            return self
        wide = len(self.wide)
        place = np.cumsum(columns) - 1
        return Rows(
            self.wide[np.ix_(rows[:wide], columns)],
            place[self.key][rows[wide:]],
            self.size[rows[wide:]],
        )

    def squares(self, weights: Floats) -> Floats:
        """Return the products of columns, summed over rows times their squared weights."""
        wide, squared = len(self.wide), weights**2
        narrow = np.bincount(self.key, self.size**2 * squared[wide:], self.width)
        total = np.diag(narrow.astype(float))
        for start in range(0, wide, AT_ONCE):
            part = self.wide[start : start + AT_ONCE]
            total += part.T @ (part * squared[start : min(start + AT_ONCE, wide), None])
        return total

    def sums(self, weights: Floats) -> Floats:
        """Return the columns summed over rows times their squared weights."""
        wide, squared = len(self.wide), weights**2
        narrow = np.bincount(self.key, self.size * squared[wide:], self.width)
        total: Floats = self.wide.T @ squared[:wide] + narrow
        return total

    def triangle(self, weights: Floats) -> Floats:
        """Return a triangle with the weighed columns' lengths and angles: few rows for many.

        By way of squares, so that columns less than 1e-6 apart are one.
        """
        squares = self.squares(weights)
        norms = np.sqrt(np.diag(squares))
        unit = np.where(norms > 0, norms, 1.0)
        lower = np.linalg.cholesky(squares / np.outer(unit, unit) + JITTER * np.eye(len(unit)))
        triangle: Floats = lower.T * norms
        return triangle
