"""Outlying figures by name: what a fit does not explain is reported, never dropped in silence."""

from collections.abc import Sequence

import numpy as np

from pipeline.regress.design import Design
from pipeline.regress.rows import Floats, Rows
from pipeline.regress.solve import outliers

MOST_NAMED = 100
"""Outliers that are named; the others are counted."""


def name_outliers(
    labels: Sequence[str], design: Design, rows: Rows, copies: Floats
) -> tuple[str, ...]:
    """Name figures far from the fit, farthest first: `MOST_NAMED`, and how many more."""
    observed, sizes, sighting = design.observed, rows.times(copies), design.sighting
    error = sizes / observed - 1
    far = outliers(rows, observed, copies)
    far = far[np.argsort(-np.abs(error[far]), kind="stable")]
    whole = len(design.peaks.observed)
    named = []
    for place in far[:MOST_NAMED]:
        if place < whole:
            phase = design.peaks.phase[place]
            what = "peak" if phase is None else phase.value
        else:
            what = design.names[design.term_key[place - whole]]
        label = labels[sighting[place]]
        named.append(f"{label}: {what} fitted {error[place]:+.1%} of observed")
    if len(far) > MOST_NAMED:
        named.append(f"{len(far) - MOST_NAMED} more, less far")
    return tuple(named)
