"""Running out of memory as a result: real ranks over gloo, one of which fails inside a forward."""

import json
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from small_cells import cell

from jobs.launch import Limits, launch
from jobs.record import RankRecord, read_records, record_path
from jobs.spec import Calls, CellSpec, Workload
from planner.outside import communicators

HERE = Path(__file__).parent


def failing(kind: str, call: int, topology: str = "ep2_cp1") -> CellSpec:
    made = cell(topology, requests=(40, 40, 40, 40))
    workload = Workload(name=f"{kind} {call}", requests=made.workload.requests)
    return replace(made, calls=Calls(name="pair", measured=2), workload=workload)


CELLS = {
    "device": failing("device", 1),
    "nccl": failing("nccl", 0, "ep1_cp1"),
    "host": failing("host", 1, "ep1_cp1"),
}


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[RankRecord]]]:
    """Run all cells side by side; return the records of each one's ranks."""
    out = tmp_path_factory.mktemp("failed")
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(HERE))
    ended = launch(
        list(CELLS.values()), out, Limits(entry="failing_rank:main", max_ranks=4, retries=0)
    )
    patch.undo()
    assert [event.kind for event in ended] == ["failed"] * 3
    priced = [name for name, _ in communicators(CELLS["device"].model, CELLS["device"].topology)]
    for rank in range(2):
        made = json.loads((out / f"connected.{rank}.json").read_text())
        assert made == dict.fromkeys(priced, 10), "the groups that the planner counts"
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(out) in str(p.info["cmdline"])]
    return {
        kind: [read_records(record_path(out, spec.key, 0, rank))[0] for rank in spec.ranks]
        for kind, spec in CELLS.items()
    }


@pytest.mark.parametrize(("kind", "call"), [("device", 1), ("nccl", 0), ("host", 1)])
def test_the_rank_s_outcome_says_which_memory_ran_out(failed, kind: str, call: int) -> None:
    """Reference: the exception that was raised, in the words of PyTorch, NCCL and Python."""
    *finished, last = failed[kind][-1]
    assert (last.call, last.outcome) == (call, f"oom-{kind}")
    assert [(r.call, r.outcome) for r in finished] == [(0, "ok")][:call]


@pytest.mark.parametrize("kind", CELLS)
def test_the_partial_peak_is_kept(failed, kind: str) -> None:
    """Reference: the layers before the last one ran, so that something was live, yet not all."""
    record = failed[kind][-1][-1]
    assert record.planned is not None
    seen = record.observed
    assert 0 < seen.working_set_bytes < 0.9 * record.planned.expected_bytes
    assert seen.terms
    assert max(size for size, _ in seen.timeline) == seen.working_set_bytes
    assert seen.call_s > 0


def test_the_other_rank_is_released_and_says_why(failed) -> None:
    """Reference: its collective cannot end; the lost connection or the launcher ends it.

    Had it waited for its time limit, the outcome would be ``timeout``.
    """
    record = failed["device"][0][-1]
    assert record.outcome == "error"
    assert record.call == failed["device"][1][-1].call
    assert "Connection closed by peer" in record.error or "stopped because" in record.error
