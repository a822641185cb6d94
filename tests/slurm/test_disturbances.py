"""Faults of nodes, daemons, disks and the driver: no record is lost, none doubled."""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.slurm.disturbances import DISTURBANCES, TOGETHER, disk_full
from tests.slurm.lab import PYTHONPATH

pytestmark = pytest.mark.needs("slurm")


@pytest.fixture(scope="module")
def disturbed(
    tmp_path_factory: pytest.TempPathFactory, slurm_missing: str
) -> dict[Callable[[Path], float], "Future[float]"]:
    """Every disturbance, those that do not disturb each other at the same time."""
    if slurm_missing:
        pytest.skip(slurm_missing)
    done = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PYTHONPATH)
        for group in TOGETHER:
            with ThreadPoolExecutor(len(group)) as pool:
                for disturb in group:
                    if disturb is disk_full and os.getuid() != 0:
                        continue
                    out = tmp_path_factory.mktemp(disturb.__name__)
                    done[disturb] = pool.submit(disturb, out)
    return done


@pytest.mark.parametrize("disturb", DISTURBANCES, ids=lambda disturb: disturb.__name__)
def test_a_sweep_survives(
    disturbed: dict[Callable[[Path], float], "Future[float]"], disturb: Callable[[Path], float]
) -> None:
    """Reference: the fault's own description; checked where it is injected."""
    if disturb not in disturbed:
        pytest.skip("only root can mount a small disk")
    assert disturbed[disturb].result() > 0
