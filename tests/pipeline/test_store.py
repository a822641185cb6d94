"""Records to a table: the newest attempt counts, and what cannot be read is said."""

from pathlib import Path
from types import ModuleType

import pytest

from jobs.record import record_path, write_records
from jobs.spec import CellSpec
from pipeline.config import cell_of
from pipeline.store import NO_TERM, labels, read_store, rows, term_rows
from pipeline.summary import summarise
from tests.pipeline.test_config import composed

MIB = 2**20


def a_cell(*overrides: str) -> CellSpec:
    return cell_of(composed("topology=ep2_cp1", *overrides))


def write(out: Path, stub: ModuleType, spec: CellSpec, attempt: int, *outcomes: str) -> None:
    """Write what two ranks would: one record for each outcome given, calls in order."""
    (out / "specs").mkdir(parents=True, exist_ok=True)
    spec.write(out / "specs" / f"{spec.key}.json")
    for rank in range(spec.topology.world):
        write_records(
            record_path(out, spec.key, attempt, rank),
            [stub.record(spec, attempt, rank, call, what) for call, what in enumerate(outcomes)],
        )


def test_every_call_of_every_rank_is_one_row(tmp_path: Path, stub: ModuleType) -> None:
    """Reference: the stub's figures, expected 100 + 10·rank MiB, observed 1 % under."""
    write(tmp_path, stub, a_cell(), 0, "ok", "ok", "ok")
    table = rows(read_store(tmp_path))
    assert [(row["call"], row["rank"]) for row in table] == [
        (call, rank) for call in range(3) for rank in range(2)
    ]
    last = table[-1]
    assert last["planned_expected_bytes"] == 110 * MIB
    assert last["residual_bytes"] == 110 * MIB * 99 // 100 - 110 * MIB
    assert last["error_percent"] == pytest.approx(-1, abs=1e-6)
    assert last["covered"] is True
    assert (last["topology"], last["weights"], last["temperature"]) == ("ep2_cp1", "random", "warm")


def test_terms_sum_to_the_working_set_on_either_side(tmp_path: Path, stub: ModuleType) -> None:
    """Reference: the law, terms and what matched none make the peak."""
    write(tmp_path, stub, a_cell(), 0, "ok")
    store = read_store(tmp_path)
    for row in rows(store):
        mine = [t for t in term_rows(store) if t["rank"] == row["rank"]]
        assert sum(t["planned_bytes"] for t in mine) == row["planned_expected_bytes"]
        assert sum(t["observed_bytes"] for t in mine) == row["observed_working_set_bytes"]
        assert NO_TERM in {t["term"] for t in mine}


def test_the_newest_attempt_counts_and_is_not_doubled(tmp_path: Path, stub: ModuleType) -> None:
    """Reference: by hand; attempt 10 is newer than attempt 9, though its name sorts before."""
    write(tmp_path, stub, a_cell(), 9, "ok", "error")
    write(tmp_path, stub, a_cell(), 10, "ok", "ok", "ok")
    (cell,) = read_store(tmp_path).cells
    assert (cell.attempt, cell.outcome, len(cell.records)) == (10, "ok", 6)


def test_a_missing_rank_makes_a_cell_incomplete(tmp_path: Path, stub: ModuleType) -> None:
    """Reference: the spec's world, two ranks."""
    write(tmp_path, stub, a_cell(), 0, "ok", "ok", "ok")
    record_path(tmp_path, a_cell().key, 0, 1).unlink()
    (cell,) = read_store(tmp_path).cells
    assert (cell.outcome, cell.error) == ("incomplete", "records are missing of rank 1")


@pytest.mark.parametrize(
    ("outcomes", "outcome"),
    [
        (("ok", "ok", "ok"), "ok"),
        (("refused",), "refused"),
        (("ok", "error"), "failed"),
        (("ok",), "incomplete"),
    ],
)
def test_a_cell_ends_as_its_records_say(
    tmp_path: Path, stub: ModuleType, outcomes: tuple[str, ...], outcome: str
) -> None:
    """Reference: design.md 6, the outcomes of a record; three calls are asked for."""
    write(tmp_path, stub, a_cell(), 0, *outcomes)
    (cell,) = read_store(tmp_path).cells
    assert cell.outcome == outcome


def test_what_cannot_be_read_is_a_fault_and_costs_nothing_else(
    tmp_path: Path, stub: ModuleType
) -> None:
    """Reference: three faults put there by hand: a torn line, a stranger's file, a lost spec."""
    spec, other = a_cell(), a_cell("weights.seed=1")
    write(tmp_path, stub, spec, 0, "ok", "ok", "ok")
    write(tmp_path, stub, other, 0, "ok", "ok", "ok")
    torn = record_path(tmp_path, spec.key, 0, 0)
    torn.write_text(torn.read_text() + '{"key": "half a rec')
    (tmp_path / "records" / "notes.jsonl").write_text("hello\n")
    (tmp_path / "specs" / f"{other.key}.json").unlink()
    store = read_store(tmp_path)
    assert len(rows(store)) == 12
    assert len(store.faults) == 3
    assert any(f"{torn.name}:4: torn or not JSON" in fault for fault in store.faults)
    assert any("notes.jsonl: no record file is named like this" in f for f in store.faults)
    assert any(f"{other.key}.json" in fault for fault in store.faults)
    assert rows(store)[-1]["topology"] == "ep2_cp1", "from the label, where the spec is lost"


def test_cells_of_one_label_are_told_apart(tmp_path: Path, stub: ModuleType) -> None:
    """Reference: by hand, the one field in which the two specs differ."""
    for override in ("meter.budget_gib=null", "meter.budget_gib=0.5"):
        write(tmp_path, stub, a_cell(override), 0, "ok", "ok", "ok")
    assert set(labels(read_store(tmp_path)).values()) == {
        "ep2_cp1 random meter.budget_gib=None",
        "ep2_cp1 random meter.budget_gib=0.5",
    }


def test_cells_that_differ_in_much_are_told_apart_by_little(
    tmp_path: Path, stub: ModuleType
) -> None:
    """Reference: by hand; two models differ in all their sizes, two of the cells in a seed too."""
    for overrides in (
        ("model=tiny",),
        ("model=qwen3_30b_a3b",),
        ("model=qwen3_30b_a3b", "weights.seed=5"),
    ):
        write(tmp_path, stub, a_cell(*overrides), 0, "ok", "ok", "ok")
    assert set(labels(read_store(tmp_path)).values()) == {
        "ep2_cp1 random model.name=tiny weights.seed=913",
        "ep2_cp1 random model.name=qwen3_30b_a3b weights.seed=913",
        "ep2_cp1 random model.name=qwen3_30b_a3b weights.seed=5",
    }


def test_workloads_are_told_apart_by_name_and_not_by_their_requests(
    tmp_path: Path, stub: ModuleType
) -> None:
    """Reference: by hand; the longer one lists 48 requests of 2,048 tokens."""
    for name in ("even_16k", "even_98k"):
        write(tmp_path, stub, a_cell(f"workload={name}"), 0, "ok", "ok", "ok")
    assert set(labels(read_store(tmp_path)).values()) == {
        "ep2_cp1 random workload.name=even_16k",
        "ep2_cp1 random workload.name=even_98k",
    }


def test_a_summary_takes_the_fullest_rank_and_the_worst_error(
    tmp_path: Path, stub: ModuleType
) -> None:
    """Reference: by hand; rank 1 is the fuller, and rank 0's call 2 is made 10 % too full."""
    spec = a_cell()
    write(tmp_path, stub, spec, 0, "ok", "ok", "ok")
    records = [stub.record(spec, 0, 0, call) for call in range(3)]
    records[2].observed.working_set_bytes = records[2].planned.expected_bytes * 11 // 10 + 1
    write_records(record_path(tmp_path, spec.key, 0, 0), records)
    cold, warm = summarise(rows(read_store(tmp_path)))
    assert (cold.fullest["rank"], cold.covered, cold.observed) == (1, 2, 2)
    assert warm.worst_percent == pytest.approx(10, abs=1e-4)
    assert (warm.covered, warm.observed) == (3, 4), "one byte above the bound is not within it"
