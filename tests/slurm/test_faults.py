"""Faults on a real Slurm: each ends in the right record, none lost and none doubled."""

import pytest

from jobs.launch import Event
from tests.slurm.faults import FAULTS, Fault
from tests.slurm.lab import PYTHONPATH, Running, attempts_of, cell, limits, outcomes, records

pytestmark = pytest.mark.needs("slurm")


@pytest.fixture(scope="module")
def disturbed(
    tmp_path_factory: pytest.TempPathFactory, slurm_missing: str
) -> tuple[Running, dict[str, Event]]:
    """One launch with a cell for each fault, all injected; and how each cell ended."""
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
            fault.inject(running, running.told.job(spec))
        return running, running.finish()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.behaviour)
def test_a_fault_ends_in_the_right_record(
    disturbed: tuple[Running, dict[str, Event]], fault: Fault
) -> None:
    """Reference: the fault itself, and what `tests.slurm.faults` says must come of it."""
    running, _ = disturbed
    spec = cell(fault.behaviour)
    assert running.told.kinds(spec) == ["queued", *fault.kinds]
    first = outcomes(spec, running.out, 0)
    assert tuple(tuple(first[rank]) for rank in spec.ranks) == fault.outcomes
    wrong = [r for of_rank in records(spec, running.out, 0).values() for r in of_rank if r.error]
    assert bool(wrong) == bool(fault.words)
    assert not fault.words or any(fault.words in (record.error or "") for record in wrong)
    last = records(spec, running.out, attempts_of(spec, running.out)[-1])
    if "failed" not in fault.kinds:
        for rank in spec.ranks:
            assert [record.outcome for record in last[rank]] == ["ok"] * 3
            assert last[rank][-1].environment["resumed"] == fault.resumed
            assert last[rank][0].environment["resumed"] == 0, "what stands is not run again"
