"""A rank from spec to record: it sees what it planned; splits, refusals, errors are recorded."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from small_cells import cell

from jobs.record import RankRecord, read_records, record_path
from jobs.spec import Calls, CellSpec, Meter
from planner import Batch, MemorySample, compile_pricer
from planner.profile_store import ProfileStore
from planner.units import GIB

PROGRAM = """
import sys
from pathlib import Path
from jobs.rank import main
spec, out, rendezvous = sys.argv[1:]
main(Path(spec), Path(out), 0, rendezvous)
"""
CALLS = Calls(name="both", measured=3)


def long_cell(topology: str, **meter: object) -> CellSpec:
    """Four requests of 64 tokens, three calls, under the ledger."""
    made = cell(topology, requests=(64, 64, 64, 64))
    return replace(made, calls=CALLS, meter=Meter(**meter))


def run(spec: CellSpec, out: Path) -> list[list[RankRecord]]:
    """Run every rank of a cell; return the records of each, however they end."""
    out.mkdir(exist_ok=True)
    path = out / "spec.json"
    spec.write(path)
    world = spec.topology.world
    command = [sys.executable, "-c", PROGRAM, str(path), str(out), f"file://{out}/rendezvous"]
    ranks = [
        subprocess.Popen(command, env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world)})
        for rank in range(world)
    ]
    for rank in ranks:
        rank.wait(150)
    paths = [record_path(out, spec.key, 0, rank) for rank in range(world)]
    return [read_records(path)[0] for path in paths]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[list[RankRecord]]:
    """Two ranks of EP2 x CP2, unlimited, started by torchrun as a person would."""
    spec, out = long_cell("ep2_cp2"), tmp_path_factory.mktemp("pair")
    spec.write(out / "spec.json")
    command = ["-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "jobs.rank"]
    subprocess.run([sys.executable, *command, str(out / "spec.json"), str(out)], check=True)
    return [read_records(record_path(out, spec.key, 0, rank))[0] for rank in range(2)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[CellSpec, list[RankRecord]]:
    """One rank, started by hand, which keeps a profile; the cell and its records."""
    out = tmp_path_factory.mktemp("alone")
    spec = long_cell("ep1_cp1", profile=str(out / "profiles.json"))
    spec.write(out / "spec.json")
    command = [sys.executable, "-m", "jobs.rank", str(out / "spec.json"), str(out)]
    subprocess.run(command, check=True, timeout=150)
    records, faults = read_records(record_path(out, spec.key, 0, 0))
    assert not faults
    return spec, records


def test_one_rank_by_hand_expects_what_it_sees(alone):
    """Reference: the ledger; at EP1 rows are exact, so only block rounding is left (under 2 %)."""
    _, records = alone
    assert [(r.call, r.temperature, r.outcome) for r in records] == [
        (0, "cold", "ok"),
        (1, "warm", "ok"),
        (2, "warm", "ok"),
    ]
    for record in records:
        planned, seen = record.planned, record.observed
        assert seen.working_set_bytes == pytest.approx(planned.expected_bytes, rel=0.02)
        assert seen.working_set_bytes <= planned.bound_bytes
        assert seen.retained_bytes == pytest.approx(planned.retained_bytes, rel=0.02)
        assert seen.held_over_bytes == pytest.approx(planned.held_over_bytes, rel=0.02)
        assert (seen.held_over_bytes > 0) == (record.call > 0)
        assert seen.growth_bytes == planned.growth_bytes == 0
        assert seen.routed_rows == planned.routed_rows
        assert sum(seen.terms.values()) + seen.unattributed_bytes == seen.working_set_bytes


def test_growth_is_what_the_buffers_hold(pair):
    """Reference: the buffers' own bytes: all of them cold, none warm, on every rank."""
    for records in pair:
        cold, *warm = records
        assert cold.planned.growth_bytes == cold.observed.growth_bytes
        assert cold.observed.growth_bytes == cold.observed.outside_bytes > 0
        for record in warm:
            assert record.planned.growth_bytes == record.observed.growth_bytes == 0
            assert record.observed.outside_bytes == cold.observed.outside_bytes


def test_warm_calls_find_what_was_predicted_to_be_held_over(pair):
    """Reference: the ledger at the start of each warm call, within block rounding and rows."""
    for records in pair:
        assert records[0].observed.held_over_bytes == records[0].planned.held_over_bytes == 0
        for record in records[1:]:
            planned, seen = record.planned.held_over_bytes, record.observed.held_over_bytes
            assert seen == pytest.approx(planned, rel=0.02)


def test_all_ranks_split_alike_and_the_loss_stays(pair, tmp_path):
    """Reference: the unsplit run of the same tokens: the same loss; and the room that was given."""
    spec = long_cell("ep2_cp2")
    pricer = compile_pricer(spec.model, spec.topology, spec.step)
    sample = MemorySample(room_bytes=(None, None))
    demands = pricer.admit(Batch(requests=spec.workload.requests), sample).demands
    budget = (max(demand.bytes for demand in demands) - 1) / GIB
    split = run(long_cell("ep2_cp2", budget_gib=budget), tmp_path)
    children = {r.planned.decision["children"] for records in split for r in records}
    assert children == {2}
    for records in split:
        assert [record.outcome for record in records] == ["ok"] * 3
        for record in records:
            room = int(budget * GIB)
            assert record.observed.working_set_bytes <= record.planned.bound_bytes <= room
    for call in range(3):
        whole = math.fsum(records[call].loss for records in pair)
        parts = math.fsum(records[call].loss for records in split)
        assert parts == pytest.approx(whole, rel=1e-5)


def test_what_cannot_fit_is_refused_before_anything_runs(tmp_path):
    """Reference: house rule: a refusal is a record with its numbers and the ways out."""
    (records,) = run(long_cell("ep1_cp1", budget_gib=1e-4), tmp_path)
    (refusal,) = records
    assert refusal.outcome == "refused"
    assert refusal.observed is None
    assert refusal.planned.decision["verdict"] == "refuse"
    assert "short of" in refusal.error
    assert "ways out" in refusal.error
    assert refusal.planned.demand_bytes > 1e-4 * GIB


def test_an_error_is_recorded_and_raised(tmp_path):
    """Reference: house rule: a record whatever happens, naming value and way out."""
    spec = long_cell("ep1_cp1")
    data = spec.to_dict()
    data["coefficients"] = "no-such-table"
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(data))
    done = subprocess.run(
        [sys.executable, "-m", "jobs.rank", str(path), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode != 0
    (found,) = (tmp_path / "records").glob("*.jsonl")
    ((record,), faults) = read_records(found)
    assert not faults
    assert record.outcome == "error"
    assert "no coefficient table 'no-such-table'; shipped: art-954" in record.error


def test_a_cell_of_two_ranks_says_how_to_start_them(tmp_path):
    """Reference: house rule 7."""
    spec = long_cell("ep2_cp2")
    spec.write(tmp_path / "spec.json")
    done = subprocess.run(
        [sys.executable, "-m", "jobs.rank", str(tmp_path / "spec.json"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode != 0
    assert "runs 2 ranks, 1 were started; run torchrun --nproc-per-node=2" in done.stderr


def test_what_calls_have_shown_is_kept_for_the_next_job(alone):
    """Reference: the record itself: observed over expected, in thousandths rounded up."""
    spec, records = alone
    assert spec.key == long_cell("ep1_cp1").key
    seen = max(-(-1000 * r.observed.working_set_bytes // r.planned.expected_bytes) for r in records)
    pricer = compile_pricer(spec.model, spec.topology, spec.step)
    kept = ProfileStore(Path(spec.meter.profile)).load(pricer)
    expected = records[0].planned.expected_bytes
    assert kept.floor(expected) == -(-expected * seen // 1000)
