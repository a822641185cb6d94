"""A fake cell under the launcher: one process for each rank asked for, of a larger world."""

from dataclasses import replace

from small_cells import cell

from jobs.completion import is_recorded
from jobs.launch import Limits, launch
from jobs.record import read_records
from jobs.spec import Calls, Meter


def test_the_ranks_asked_for_leave_records(tmp_path):
    """Reference: ranks 1 and 3 of four, which is more than the two that may run at once."""
    spec = replace(
        cell("ep4_cp1", dtype="bf16"),
        backend="fake",
        calls=Calls(name="two", measured=2),
        meter=Meter(ranks=(3, 1)),
    )
    (event,) = launch([spec], tmp_path, Limits(max_ranks=2, retries=0))
    assert event.kind == "ok", event.why
    assert is_recorded(spec, tmp_path)
    files = sorted((tmp_path / "records").iterdir())
    found = [read_records(path)[0] for path in files]
    assert [[(r.rank, r.call, r.outcome) for r in of_rank] for of_rank in found] == [
        [(1, 0, "ok"), (1, 1, "ok")],
        [(3, 0, "ok"), (3, 1, "ok")],
    ]
    assert [of_rank[0].planned.local_tokens for of_rank in found] == [33, 31]
    assert all(r.loss is None and r.observed for of_rank in found for r in of_rank)


def test_by_default_rank_0_and_the_busiest_run():
    """Derivation: replicas hold 24, 33, 16 and 31 tokens, one request each."""
    spec = replace(cell("ep4_cp1"), backend="fake")
    assert spec.ranks == (0, 1)
    assert cell("ep4_cp1").ranks == (0, 1, 2, 3)
