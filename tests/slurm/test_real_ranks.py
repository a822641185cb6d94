"""Real ranks on two nodes, interrupted half-way: what they record is what one machine records."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.launch import Limits, SlurmLimits, launch
from jobs.record import RankRecord
from jobs.spec import Calls, CellSpec
from tests.slurm.lab import PYTHONPATH, ROOT, Running, records, slurm, wait_until

sys.path.insert(0, str(ROOT / "tests" / "jobs"))
from small_cells import cell

pytestmark = pytest.mark.needs("slurm")

SPEC = replace(cell("ep4_cp2", requests=(256, 256, 256, 256)), calls=Calls(name="five", measured=5))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[RankRecord]]:
    """What the local launcher's ranks record."""
    out = tmp_path_factory.mktemp("here")
    (event,) = launch([SPEC], out, Limits(retries=0))
    assert event.kind == "ok", event.why
    return records(SPEC, out, 0)


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory, slurm_missing: str) -> Running:
    """The same cell on two nodes of Slurm, requeued once its ranks have recorded a call."""
    if slurm_missing:
        pytest.skip(slurm_missing)
    out = tmp_path_factory.mktemp("there")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PYTHONPATH)
        wanted = SlurmLimits(nodes=2, memory_gib=3.0, timeout_min=10.0, poll_s=0.3, retries=0)
        running = Running([SPEC], out, wanted)
        running.start()
        wait_until(lambda: _recorded(SPEC, out) or running.error, "every rank's first call", 240)
        slurm("scontrol", "requeue", running.told.job(SPEC))
        running.hasten(SPEC)
        (event,) = running.finish(240).values()
    assert event.kind == "ok", event.why
    return running


def _recorded(spec: CellSpec, out: Path) -> bool:
    return all(of_rank for of_rank in records(spec, out, 0).values())


def test_it_ran_on_two_nodes_and_went_on_where_it_was(there: Running) -> None:
    """Reference: Slurm's own account of the job; a call that stands is not run again."""
    job = there.told.job(SPEC)
    assert slurm("squeue", "-h", "-r", "-t", "all", "-j", job, "-o", "%D %N") == "2 n[1-2]"
    for of_rank in records(SPEC, there.out, 0).values():
        assert [record.call for record in of_rank] == [0, 1, 2, 3, 4]
        assert of_rank[0].environment["resumed"] == 0
        assert of_rank[-1].environment["resumed"] == 1


def test_its_records_are_those_of_one_machine(
    there: Running, here: dict[int, list[RankRecord]]
) -> None:
    """Reference: the local launcher's uninterrupted run: same plan, working sets within 0.5 %."""
    for rank, of_rank in records(SPEC, there.out, 0).items():
        for mine, local in zip(of_rank, here[rank], strict=True):
            assert (mine.key, mine.call, mine.outcome) == (local.key, local.call, local.outcome)
            assert mine.planned is not None
            assert local.planned is not None
            for name in ("expected_bytes", "growth_bytes", "retained_bytes", "terms", "moments"):
                assert getattr(mine.planned, name) == getattr(local.planned, name)
            assert mine.observed is not None
            assert local.observed is not None
            for name in ("working_set_bytes", "held_over_bytes", "growth_bytes"):
                seen, expected = getattr(mine.observed, name), getattr(local.observed, name)
                assert seen == pytest.approx(expected, rel=0.005), (rank, mine.call, name)
            assert mine.loss == pytest.approx(local.loss, rel=1e-5)
