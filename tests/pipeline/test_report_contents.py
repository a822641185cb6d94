"""What the page's script is given: the records' own figures, as columns."""

from pathlib import Path
from types import ModuleType

import pytest

from jobs.record import record_path, write_records
from pipeline.report import details as details_module
from pipeline.report.contents import contents, pack, unpack
from pipeline.store import NO_TERM, read_store, rows, term_rows
from tests.pipeline.many_records import GOLDEN, write_many
from tests.pipeline.test_store import MIB, a_cell, write


def test_columns_are_the_rows_of_the_store() -> None:
    """Reference: the same records through `pipeline.store`, a row a call."""
    store = read_store(GOLDEN)
    calls = contents(store)["calls"]
    table = rows(store)
    assert len(table) == 30
    for place, row in enumerate(table):
        assert calls["expected"][place] == row["planned_expected_bytes"]
        assert calls["observed"][place] == row["observed_working_set_bytes"]
        assert calls["held_observed"][place] == row["observed_held_over_bytes"]
        assert calls["error"][place] == pytest.approx(row["error_percent"], abs=1e-5)
        assert store.cells[calls["cell"][place]].key == row["key"]


def test_terms_of_a_call_sum_to_its_peak_on_either_side() -> None:
    """Reference: the law, terms and what matched none make the peak; and the store's term rows."""
    store = read_store(GOLDEN)
    held = contents(store)
    terms = held["terms"]
    assert terms["names"][-1] == NO_TERM
    for place in range(30):
        planned = [column[place] for column in terms["planned"]]
        residual = [column[place] for column in terms["residual"]]
        assert sum(planned) == held["calls"]["expected"][place]
        assert sum(planned) + sum(residual) == held["calls"]["observed"][place]
    listed = sum(abs(row["residual_bytes"]) for row in term_rows(store))
    assert sum(abs(size) for column in terms["residual"] for size in column) == listed > 0


def test_observed_copies_follow_from_the_planned_ones(tmp_path: Path) -> None:
    """Reference: the copies that the records were written with, 1 to 4 by the term's place."""
    write_many(tmp_path / "few", 4)
    terms = contents(read_store(tmp_path / "few"))["terms"]
    (record, *_) = read_store(tmp_path / "few").cells[0].records
    assert record.planned is not None
    for name, copies in record.planned.copies.items():
        assert terms["copies"][terms["names"].index(name)][0] == copies


def test_details_are_kept_for_the_fullest_and_the_most_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reference: the rule in words; errors and fullest calls by a second count over the rows."""
    monkeypatch.setattr(details_module, "MOST_CALLS", 20)
    write_many(tmp_path / "few", 60)
    store = read_store(tmp_path / "few")
    held = contents(store)
    kept = {int(place) for place in held["details"]["calls"]}
    assert len(kept) == 20
    fullest = set(held["groups"]["fullest"])
    assert fullest <= kept if len(fullest) <= 20 else kept <= fullest
    errors = [abs(error) for error in held["calls"]["error"]]
    others = [errors[place] for place in range(len(errors)) if place not in kept | fullest]
    assert all(errors[place] >= max(others) for place in kept - fullest)
    assert held["details"]["of"] == len(errors)


def test_a_timeline_keeps_its_bytes_and_places(tmp_path: Path) -> None:
    """Reference: the record's own timeline."""
    write_many(tmp_path / "few", 4)
    store = read_store(tmp_path / "few")
    held = contents(store)["details"]
    detail = held["calls"]["0"]
    shown = [
        [size, held["names"][w]] for size, w in zip(detail["live"], detail["where"], strict=True)
    ]
    observed = store.cells[0].records[0].observed
    assert observed is not None
    assert shown == [list(one) for one in observed.timeline]
    assert max(detail["live"]) == observed.working_set_bytes


def test_a_saving_pairs_cells_that_differ_in_the_switch_alone(
    tmp_path: Path, stub: ModuleType
) -> None:
    """Reference: by hand; the released cell's records are lowered by 7 and 5 MiB."""
    kept, released = a_cell(), a_cell("step.release_dispatcher_state=true")
    write(tmp_path, stub, kept, 0, "ok", "ok", "ok")
    write(tmp_path, stub, a_cell("topology=ep1_cp1"), 0, "ok", "ok", "ok")
    write(tmp_path, stub, released, 0, "ok", "ok", "ok")
    for rank in range(2):
        lower = [stub.record(released, 0, rank, call) for call in range(3)]
        for record in lower:
            record.planned.expected_bytes -= 7 * MIB
            record.observed.working_set_bytes -= 5 * MIB
        write_records(record_path(tmp_path, released.key, 0, rank), lower)
    held = contents(read_store(tmp_path))
    assert [held["cells"]["key"][one["cell"]] for one in held["savings"]] == [kept.key] * 2
    assert [one["temperature"] for one in held["savings"]] == ["cold", "warm"]
    for one in held["savings"]:
        assert one["expected"][0] - one["expected"][1] == 7 * MIB
        assert one["observed"][0] - one["observed"][1] == 5 * MIB


def test_garbage_is_told_apart_from_held_over(tmp_path: Path, stub: ModuleType) -> None:
    """Reference: by hand; 5 MiB held over in the stub's warm calls, 3 MiB of garbage put there."""
    spec = a_cell("topology=ep1_cp1")
    write(tmp_path, stub, spec, 0, "ok", "ok", "ok")
    records = [stub.record(spec, 0, 0, call) for call in range(3)]
    records[1].observed.garbage_bytes = 3 * MIB
    write_records(record_path(tmp_path, spec.key, 0, 0), records)
    calls = contents(read_store(tmp_path))["calls"]
    assert calls["garbage"] == [0, 3 * MIB, 0]
    assert calls["held_observed"] == [0, 5 * MIB, 5 * MIB]


def test_packing_loses_nothing_and_refuses_what_json_has_not() -> None:
    """Reference: the round trip; JSON knows no NaN."""
    values = {"a": [1, 2.5, None, "</script>"], "b": {"c": 2**53 - 1}}
    packed = pack(values)
    assert unpack(packed) == values
    assert "<" not in packed
    with pytest.raises(ValueError, match="not JSON compliant"):
        pack({"a": float("nan")})
