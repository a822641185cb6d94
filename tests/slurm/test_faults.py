"""Faults on a real Slurm: each ends in the right record, none lost and none doubled."""

import pytest

from tests.slurm.faults import FAULTS, Fault
from tests.slurm.lab import PYTHONPATH, Running, cell, limits

pytestmark = pytest.mark.needs("slurm")


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory, slurm_missing: str) -> Running:
    """One launch with a cell for each fault, all injected."""
    if slurm_missing:
        pytest.skip(slurm_missing)
    out = tmp_path_factory.mktemp("faults")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PYTHONPATH)
        cells = [cell(fault.behaviour) for fault in FAULTS]
        running = Running(cells, out, limits(memory_gib=0.25))
        running.start()
        for fault, spec in zip(FAULTS, cells, strict=True):
            running.reached(fault.behaviour)
            running.followed(spec, "started")  # until then Slurm passes no signal on
            fault.inject(running, running.told.job(spec))
        for fault, spec in zip(FAULTS, cells, strict=True):
            if "resumed" in fault.kinds:
                running.hasten(spec)
        running.finish()
    return running


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.behaviour)
def test_a_fault_ends_in_the_right_record(disturbed: Running, fault: Fault) -> None:
    """Reference: the fault itself, and what `tests.slurm.faults` says must come of it."""
    fault.check(disturbed)
