"""Propose: cells of a next sweep that would tell apart what this one cannot."""

from collections.abc import Mapping

import numpy as np

from pipeline.regress.design import make_design
from pipeline.regress.identify import next_cells
from pipeline.regress.sighting import Sighting, Sightings, gather, join, select
from planner.coefficients import Coefficients

MOST = 3
ENOUGH = 5000
"""Sightings that say what a sweep separates; of more, evenly spaced ones are taken."""


def propose(
    sightings: Sightings, candidates: Mapping[str, Sighting], table: Coefficients
) -> list[str]:
    """Return up to `MOST` candidates that raise the rank or shrink a collinear group, best first.

    Rows are those of the moments that are fullest under the table's own copies.
    """
    step = -(-len(sightings) // ENOUGH)
    some = select(sightings, np.arange(0, len(sightings), step))
    design = make_design(join([some, gather(list(candidates.values()))]), table)
    rows = design.at(design.peaks.fullest(design.prior))
    known = design.sighting < len(some)
    every = np.ones(rows.width, dtype=bool)
    seen = rows.take(known, every)
    labels = list(candidates)
    offered = {
        labels[design.peaks.sighting[place] - len(some)]: rows.wide[place]
        for place in design.whole
        if design.peaks.sighting[place] >= len(some)
    }
    return next_cells(seen, seen.times(np.ones(rows.width)), design.names, offered)[:MOST]
