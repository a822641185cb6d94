"""Faults of nodes, daemons, disks and the driver: no record is lost, none doubled."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.slurm.disturbances import DISTURBANCES

pytestmark = pytest.mark.needs("slurm")


@pytest.mark.parametrize("disturb", DISTURBANCES, ids=lambda disturb: disturb.__name__)
def test_a_sweep_survives(disturb: Callable[[Path], float], tmp_path: Path) -> None:
    """Reference: the fault's own description; checked where it is injected."""
    disturb(tmp_path)
