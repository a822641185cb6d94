"""Score: what a table says of measured cells, beside what was observed."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pipeline.measured import MeasuredCell
from pipeline.regress.held_out import LARGE
from pipeline.regress.solve import FitError
from planner.coefficients import Coefficients
from planner.compiled import TermCompiler
from planner.figures import Figures
from planner.loads import NO_GROWTH
from planner.moments import Phase


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """One cell: forward and backward peak, expected and bound, bytes."""

    label: str
    tokens: int
    observed_bytes: int
    expected_bytes: int
    bound_bytes: int
    published_bytes: int | None
    unpriced: tuple[str, ...]

    @property
    def error(self) -> float:
        """Expected over observed, less one."""
        return self.expected_bytes / self.observed_bytes - 1

    @property
    def covered(self) -> bool:
        """Whether the bound held."""
        return self.observed_bytes <= self.bound_bytes


def score(cells: Sequence[MeasuredCell], table: Coefficients) -> list[Scored]:
    """Price measured cells under a table.

    Raises
    ------
    FitError
        Where there is no cell.
    """
    if not cells:
        raise FitError("no measured cell to score")
    compiler = TermCompiler(table)
    found = []
    for cell in cells:
        sighting = cell.sighting
        compiled = compiler.compile(sighting.local)
        figures = Figures(compiled, sighting.work, table.margin_milli, NO_GROWTH, table.call_bytes)
        found.append(
            Scored(
                label=cell.label,
                tokens=cell.tokens,
                observed_bytes=sighting.seen[None],
                expected_bytes=figures.expected_peak,
                bound_bytes=max(figures.bound(Phase.FORWARD), figures.bound(Phase.BACKWARD)),
                published_bytes=cell.published_bytes,
                unpriced=tuple(str(part) for part in compiled.unpriced),
            )
        )
    return found


def summarise(scored: Sequence[Scored]) -> dict[str, Any]:
    """Return errors, coverage and tightness: of all, of large calls and of small ones.

    Beside them stands the published planner's estimate, read as its bound.
    """
    large = [cell for cell in scored if cell.tokens >= LARGE]
    small = [cell for cell in scored if cell.tokens < LARGE]
    return {
        "all": _figures(scored),
        f"from_{LARGE}_tokens": _figures(large),
        f"below_{LARGE}_tokens": _figures(small),
        "published": {
            "all": _published(scored),
            f"from_{LARGE}_tokens": _published(large),
            f"below_{LARGE}_tokens": _published(small),
        },
    }


def _figures(cells: Sequence[Scored]) -> dict[str, Any]:
    if not cells:
        return {"cells": 0}
    error = np.array([abs(cell.error) for cell in cells])
    tight = np.array([cell.bound_bytes / cell.observed_bytes for cell in cells])
    covered = sum(cell.covered for cell in cells)
    return {
        "cells": len(cells),
        "median_abs_error": round(float(np.median(error)), 5),
        "worst_abs_error": round(float(error.max()), 5),
        "covered": covered,
        "coverage": round(covered / len(cells), 5),
        "median_bound_over_observed": round(float(np.median(tight)), 5),
        "worst_bound_over_observed": round(float(tight.max()), 5),
    }


def _published(cells: Sequence[Scored]) -> dict[str, Any]:
    ratios = np.array([c.published_bytes / c.observed_bytes for c in cells if c.published_bytes])
    if not len(ratios):
        return {"cells": 0}
    return {
        "cells": len(ratios),
        "under": int((ratios < 1).sum()),
        "coverage": round(float((ratios >= 1).mean()), 5),
        "median_bound_over_observed": round(float(np.median(ratios)), 5),
        "worst_bound_over_observed": round(float(ratios.max()), 5),
    }


def as_json(scored: Sequence[Scored]) -> list[dict[str, Any]]:
    """Return cells as the JSON document has them."""
    return [{**asdict(cell), "error": round(cell.error, 5)} for cell in scored]
