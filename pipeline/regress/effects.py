"""Effects: what cold calls, warm calls and each dispatcher hold beyond what copies make of them.

Every figure of a call is set against its expectation: the peak, what is retained and what is held
over against the fitted copies; the net peak against the peak less what was held over; growth and
what lies outside PyTorch against the buffers' formula. A factor of 1 and effects of 0 are what the
derivation says. Intervals are those of ordinary least squares that do not trust the noise to be
alike everywhere (HC3).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.regress.copies import Fitted
from pipeline.regress.rows import Bools, Floats
from pipeline.regress.sighting import Sightings
from planner.moments import Phase

NORMAL = 1.959964
"""Half of a 95 % interval, in standard deviations of a normal."""
SEPARATE = 1e-9
"""Least share of a column that the others may leave, for it to have an effect of its own."""
CLASSES = {"call": "cold", "dispatcher": "hybridep"}
"""Facts that tell classes apart, and the class of each whose effect is fitted; the other is what
the factor speaks of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ordinary:
    """Ordinary least squares with HC3 intervals.

    Parameters
    ----------
    low, high
        95 % intervals of the coefficients.
    condition
        Of the columns, scaled to unit length.
    inflation
        Variance inflation of each column but the first, by the others.
    """

    found: Floats
    low: Floats
    high: Floats
    condition: float
    inflation: Floats


def ordinary(columns: Floats, target: Floats) -> Ordinary:
    """Fit a target on columns that are not collinear; the first is the constant."""
    inverse = np.linalg.inv(columns.T @ columns)
    found = inverse @ (columns.T @ target)
    rest = target - columns @ found
    leverage = np.einsum("ij,jk,ik->i", columns, inverse, columns)
    weight = (rest / np.maximum(1 - leverage, 1e-12)) ** 2
    spread = inverse @ ((columns * weight[:, None]).T @ columns) @ inverse
    error = NORMAL * np.sqrt(np.diag(spread))
    scaled = columns / np.linalg.norm(columns, axis=0)
    inflation = []
    for place in range(1, columns.shape[1]):
        others = np.delete(columns, place, axis=1)
        left = columns[:, place] - others @ np.linalg.lstsq(others, columns[:, place])[0]
        around = columns[:, place] - columns[:, place].mean()
        inflation.append(float((around @ around) / (left @ left)))
    return Ordinary(
        found=found,
        low=found - error,
        high=found + error,
        condition=float(np.linalg.cond(scaled)),
        inflation=np.array(inflation),
    )


def figures(sightings: Sightings, fitted: Fitted) -> dict[str, Any]:
    """Return factor and effects of every figure that was seen, with their intervals."""
    found = {}
    for name, (expected, observed) in _compared(sightings, fitted).items():
        use = (expected > 0) & (observed > 0)
        if use.any():
            found[name] = _effects(sightings, expected, observed, use)
        elif np.isfinite(observed).any():
            found[name] = {"calls": 0, "why": "no call has any of it"}
    return found


def _compared(sightings: Sightings, fitted: Fitted) -> Mapping[str, tuple[Floats, Floats]]:
    """Return the expected and observed bytes of each figure of every sighting."""
    peaks = fitted.design.peaks
    sizes = peaks.expected(fitted.copies)
    expected: dict[Phase | None, Floats] = {}
    for phase in sightings.seen:
        mine = np.flatnonzero([one is phase for one in peaks.phase])
        expected[phase] = np.full(len(sightings), np.nan)
        expected[phase][peaks.sighting[mine]] = sizes[mine]
    names = {None: "peak", Phase.BETWEEN: "held over"}
    found = {
        names.get(phase, str(phase)): (expected[phase], seen)
        for phase, seen in sightings.seen.items()
    }
    for name in ("growth", "outside"):
        if name in sightings.beside:
            found[name] = (sightings.beside[name][:, 0], sightings.beside[name][:, 1])
    if "net peak" in sightings.beside:
        held, peak = sightings.beside["net peak"].T
        found["net peak"] = (expected[None] - held, peak)
    return found


def _effects(
    sightings: Sightings, expected: Floats, observed: Floats, use: Bools
) -> dict[str, Any]:
    """Fit observed over expected on a constant and on classes that both occur."""
    target = observed[use] / expected[use]
    columns, names = [np.ones(len(target))], []
    apart: list[str] = []
    for fact, one in CLASSES.items():
        codes = sightings.fact(fact)
        if one not in codes.names:
            apart.append(f"{one} only: not among these calls")
            continue
        column = (codes.code[use] == codes.names.index(one)).astype(float)
        others = np.column_stack(columns)
        left = column - others @ np.linalg.lstsq(others, column)[0]
        if left @ left <= SEPARATE * len(column):
            apart.append(f"{one} only: all, none or another class's calls are {one}")
            continue
        columns.append(column)
        names.append(f"{one} only")
    if len(target) <= len(columns) + 1:
        return {"calls": len(target), "why": "too few calls for an interval"}
    fit = ordinary(np.column_stack(columns), target)
    return {
        "calls": len(target),
        "factor": _with_interval(fit, 0),
        "effects": {name: _with_interval(fit, place + 1) for place, name in enumerate(names)},
        "not_separated": apart,
        "condition": round(fit.condition, 3),
        "variance_inflation": {
            name: round(float(size), 3) for name, size in zip(names, fit.inflation, strict=True)
        },
    }


def _with_interval(fit: Ordinary, place: int) -> dict[str, Any]:
    return {
        "value": round(float(fit.found[place]), 6),
        "interval": [round(float(fit.low[place]), 6), round(float(fit.high[place]), 6)],
    }
