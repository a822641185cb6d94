"""Decisions recorded, read back, and taken again."""

import json
from dataclasses import replace
from importlib import resources

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import (
    Batch,
    MemorySample,
    Profile,
    Routing,
    Step,
    Topology,
    compile_pricer,
)
from planner.coefficients import read_table
from planner.plain import from_plain, to_plain
from planner.plan_report import PlanReport, ReportError, read_reports
from planner.replay import replay
from planner.requests import Prefix, Request
from planner.terms import TERMS
from tests.conftest import qwen
from tests.planner.strategies import TABLES, batches, models, steps, topologies

EP2 = Topology(cp=2, ep=2)


def recorded(room=None, table="art-954", batch=None, **changes):
    pricer = compile_pricer(qwen(num_layers=8), EP2, Step(), coefficients=table)
    batch = batch or Batch(rank_tokens=[105_200, 89_553])
    sample = MemorySample(room_bytes=(room, room), **changes)
    decision = pricer.admit(batch, sample, allow_unpriced=True)
    return PlanReport.of(pricer, batch, decision, allow_unpriced=True)


@settings(max_examples=60)
@given(models(), topologies(), steps(), TABLES, batches(), st.floats(0.05, 1.2), st.booleans())
def test_every_decision_replays_to_the_byte(model, topology, step, table, batch, part, learned):
    """Law: what is written, read and taken again is the same decision, byte for byte."""
    pricer = compile_pricer(model, topology, step, coefficients=table)
    price = pricer.price(batch)
    profiles = (Profile().learn(price.expected_bytes, price.expected_bytes + 7),) * topology.world
    sample = MemorySample(
        room_bytes=(int(price.demand_bytes * part),) * topology.world,
        held_tokens=(64,) * topology.world,
        profiles=profiles if learned else (),
    )
    decision = pricer.admit(batch, sample, allow_unpriced=True)
    report = PlanReport.of(pricer, batch, decision, allow_unpriced=True)
    read = PlanReport.from_json(report.to_json())
    assert read.to_json() == report.to_json()
    again = replay(read)
    assert again.same
    assert not again.moved
    assert not again.table_changed
    assert again.today.to_json() == report.to_json()


@given(models(), topologies(), steps())
def test_inputs_round_trip_through_json(model, topology, step):
    """Law: model, topology and step are the same after writing and reading."""
    for kind, value in (("model", model), ("topology", topology), ("step", step)):
        plain = json.loads(json.dumps(to_plain(value)))
        assert from_plain(type(value), plain, kind) == value


def test_measured_routing_and_prefixes_replay():
    """Law: as above, for inputs that few batches have."""
    model = qwen(num_layers=2)
    shares = [[(1 + e) / sum(range(1, 257)) for e in range(256)]] * 2
    pricer = compile_pricer(model, EP2, Step(), routing=Routing.measured(shares))
    prefix = Prefix(name="p", tokens=300)
    batch = Batch(requests=[Request(tokens=100, prefix=prefix), Request(tokens=50, targets=0)])
    decision = pricer.admit(batch, MemorySample.alike(2, None), allow_unpriced=True)
    report = PlanReport.of(pricer, batch, decision, allow_unpriced=True)
    assert replay(PlanReport.from_json(report.to_json())).same


def test_a_changed_coefficient_names_the_term_that_moved(tmp_path):
    """By hand: four copies of FC2's outputs in place of three are one copy more, 3.19 GB."""
    report = recorded()
    path = tmp_path / "changed.toml"
    shipped = _shipped("art-954")
    entry = 'term = "experts.fc2_outputs"\nwhen = { dispatcher = ["hybridep"]'
    start = shipped.index(entry)
    changed = shipped[start:].replace("recompute_fc2 = 3", "recompute_fc2 = 4", 1)
    path.write_text(shipped[:start] + changed)
    again = replay(report, str(path))
    assert not again.same
    assert again.table_changed
    (moved,) = again.moved
    assert (moved.term, moved.moment, moved.rank) == ("experts.fc2_outputs", "recompute_fc2", 0)
    rows = (105_200 + 89_553) * 8 // 2  # an even share of the group's rows
    assert moved.after - moved.before == rows * 2048 * 2
    assert replay(report, read_table(shipped, where="again")).same


def _shipped(name):
    return (resources.files("planner.tables") / f"{name}.toml").read_text()


def test_a_changed_formula_is_told_from_a_changed_table(monkeypatch):
    """Law: with the table as it was, what moved is the code's doing."""
    report = recorded()
    term = next(term for term in TERMS if term.name == "residual.boundaries")

    def twice(local):
        size = term.size(local)
        return size._replace(tokens_entered=2 * size.tokens_entered)

    changed = tuple(replace(t, size=twice) if t is term else t for t in TERMS)
    monkeypatch.setattr("planner.compiled.TERMS", changed)
    again = replay(report)
    assert not again.table_changed
    assert {moved.term for moved in again.moved} == {"residual.boundaries"}


def test_tampered_torn_and_later_reports_are_named(tmp_path):
    """Reference: house rule 7; a report that is not what was written is no evidence."""
    text = recorded().to_json()
    tampered = json.loads(text)
    tampered["inputs"]["batch"]["rank_tokens"][0] = 5
    with pytest.raises(ReportError, match="edited after writing"):
        PlanReport.from_dict(tampered)
    with pytest.raises(ReportError, match="torn or not JSON"):
        PlanReport.from_json(text[: len(text) // 2])
    with pytest.raises(ReportError, match="schema 99, this version reads 1"):
        PlanReport.from_dict(json.loads(text) | {"schema": 99})
    with pytest.raises(ReportError, match="not a plan report"):
        PlanReport.from_json("{}")
    path = tmp_path / "r.json"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ReportError, match="cannot read"):
        read_reports(path)
    path.write_text(text)
    assert [report.to_json() for report in read_reports(path)] == [text]


def test_inputs_that_today_cannot_take_are_named():
    """Reference: house rule 7."""
    data = recorded().to_dict()
    del data["digest"]
    data["inputs"] = dict(data["inputs"]) | {"step": {"colour": "red"}}
    with pytest.raises(ReportError, match="cannot be priced today: step has unknown key 'colour'"):
        PlanReport(data["inputs"], data["decision"]).again()


def test_reports_in_a_ranks_records_are_found(tmp_path):
    """Reference: jobs.live writes rank 0's report into its record's decision."""
    report = recorded(room=10**12)
    lines = [
        json.dumps({"planned": {"decision": {"report": report.to_dict()}}}),
        json.dumps({"planned": None}),
    ]
    path = tmp_path / "key.a0.r0.jsonl"
    path.write_text("\n".join(lines) + "\n")
    assert [found.to_json() for found in read_reports(path)] == [report.to_json()]
    path.write_text(lines[1] + "\n")
    with pytest.raises(ReportError, match="holds no plan report"):
        read_reports(path)
    path.write_text(lines[0][:100])
    with pytest.raises(ReportError, match=r"r0\.jsonl:1"):
        read_reports(path)
