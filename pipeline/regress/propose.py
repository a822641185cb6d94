"""Propose: cells of a next sweep that would tell apart what this one cannot."""

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.regress.identify import next_cells
from pipeline.regress.sighting import Sighting, make_design
from planner.coefficients import Coefficients

MOST = 3


def propose(
    sightings: Sequence[Sighting], candidates: Mapping[str, Sighting], table: Coefficients
) -> list[str]:
    """Return up to `MOST` candidates that raise the rank or shrink a collinear group, best first.

    Rows are those of the moments that are fullest under the table's own copies.
    """
    unique = list({(one.local, one.work): one for one in sightings}.values())
    design = make_design([*unique, *candidates.values()], table)
    rows = [shape.rows[int(np.argmax(shape.rows @ design.prior))] for shape in design.shapes]
    labels = list(candidates)
    matrix = np.array([rows[t.shape] for t in design.targets if t.sighting < len(unique)])
    total = matrix.sum(axis=1)
    offered = {
        labels[t.sighting - len(unique)]: rows[t.shape]
        for t in design.targets
        if t.sighting >= len(unique) and t.phase is None
    }
    return next_cells(matrix, total, design.names, offered)[:MOST]
