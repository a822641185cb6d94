"""Certificates, the gate and fits on a recorded study."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pipeline.certificate import code_digest, read_certificate, require_certified
from pipeline.certify import certify, coverage_interval, disagreements
from pipeline.cli import application
from pipeline.gate import table_path
from pipeline.observations import read_observations
from pipeline.recorded import RecordedError, read_recorded
from pipeline.regress.copies import fit_copies
from planner import Coefficients
from tests.conftest import GOLDEN

CELLS = GOLDEN / "h200_cells.csv"
STUDY = GOLDEN / "default_study"
SHIPPED = table_path("nonfull-h200")


def run(*arguments: str):
    return CliRunner().invoke(application(arguments[0]), list(arguments))


@pytest.fixture
def study(tmp_path) -> Path:
    return Path(shutil.copytree(STUDY, tmp_path / "study"))


def test_the_shipped_table_is_the_certified_one_and_refits():
    """Reference: the shipped certificate: the same cells and arguments give it again."""
    certificate = require_certified(SHIPPED)
    found = read_observations(CELLS)
    arguments = certificate["fit"]
    text, again = certify(
        found.sightings,
        found.prior,
        name="nonfull-h200",
        fitted_on=Coefficients.load("nonfull-h200").date,
        arguments=found.arguments,
        excluded=found.excluded,
        faults=found.faults,
        sources=found.sources,
    )
    assert arguments["strength"] == found.arguments.strength
    assert again["sightings"] == certificate["sightings"]
    assert again["code"] == certificate["code"]
    assert again["prior"] == certificate["prior"]
    for old, new in zip(certificate["coefficients"], again["coefficients"], strict=True):
        assert new["copies"] == pytest.approx(old["copies"], abs=0.002)
    assert again["errors"]["without_model"]["large_median_error"] == pytest.approx(
        certificate["errors"]["without_model"]["large_median_error"], abs=1e-4
    )
    assert hashlib.sha256(text.encode()).hexdigest() == again["table"]["sha256"]


def test_the_sweeps_own_table_is_the_confirmed_one():
    """Reference: its shipped certificate: made by this fit, of these bytes, every peak covered."""
    certificate = require_certified(table_path("megatron-local"))
    assert certificate["kind"] == "confirmed"
    assert certificate["code"]["sha256"] == code_digest()
    assert certificate["bound"]["covered"] == certificate["bound"]["of"] >= 90
    assert not disagreements(certificate)


def test_the_gate_passes_the_shipped_table_on_its_cells():
    """Reference: its certificate and the measured peaks."""
    result = run("gate", "--records", str(CELLS), "--coefficients", "nonfull-h200")
    assert result.exit_code == 0, result.output


def test_the_gate_fails_where_a_bound_does_not_hold(tmp_path):
    """Law: one observed peak above its bound is enough; the reason has both figures."""
    text = SHIPPED.read_text().replace("margin = 1.0", "margin = 1.0", 1)
    table = tmp_path / "low.toml"
    lines = [
        "margin = 1.0" if line.startswith("margin") else line
        for line in text.splitlines()
        if not line.startswith("call_bytes")
    ]
    table.write_text("\n".join(lines))
    result = run("gate", "--records", str(CELLS), "--coefficients", str(table))
    assert result.exit_code == 1
    assert "observed" in result.output
    assert "cannot read the certificate" in result.output


def test_the_gate_fails_on_a_table_that_is_not_the_certified_one(tmp_path):
    """Law: a byte changed by hand is another table."""
    table = tmp_path / "nonfull-h200.toml"
    table.write_text(SHIPPED.read_text() + "\n# by hand\n")
    shutil.copy(SHIPPED.with_suffix(".certificate.json"), tmp_path)
    result = run("gate", "--records", str(CELLS), "--coefficients", str(table))
    assert result.exit_code == 1
    assert "not the table that its certificate speaks of" in result.output


def test_the_gate_fails_on_errors_above_limits(tmp_path):
    """Law: limits are the configuration's."""
    limits = tmp_path / "limits.yaml"
    limits.write_text("large_median_error: 0.001\nlarge_worst_error: 0.001\nleast_cells: 60\n")
    result = run(
        *("gate", "--records", str(CELLS), "--coefficients", "nonfull-h200"),
        *("--limits", str(limits)),
    )
    assert result.exit_code == 1
    assert "large_median_error without model" in result.output
    assert "fewer than 60" in result.output


def test_the_default_study_gives_the_derived_copies():
    """Reference: `megatron-local`, by derivation: every copy that the records show, within 1 %."""
    found = read_observations(STUDY)
    fitted = fit_copies(found.sightings, Coefficients.load(found.prior), found.arguments)
    design = fitted.design
    shown = [i for i, name in enumerate(design.names) if name not in fitted.at_prior]
    assert len(shown) >= 30
    assert fitted.copies[shown] == pytest.approx(design.prior[shown], rel=0.012)
    held = [i for i, name in enumerate(design.names) if name in fitted.at_prior]
    assert (fitted.copies[held] == design.prior[held]).all()


def test_one_topology_says_what_would_tell_more(study, tmp_path):
    """Law: cells of one kind fit, with what they cannot separate and the next sweep named."""
    for path in study.glob("specs/*.json"):
        if json.loads(path.read_text())["topology_name"] != "ep1_cp1":
            for record in study.glob(f"records/{path.stem}.*"):
                record.unlink()
            path.unlink()
    result = run("fit", str(study), "-o", str(tmp_path / "one.toml"))
    assert result.exit_code == 0, result.output
    assert "next sweep: all of these have topology ep1_cp1" in result.output
    certificate = read_certificate(tmp_path / "one.certificate.json")
    assert certificate["identifiability"]["at_prior"]
    assert not [name for name in certificate["errors"] if name.startswith("without_")]


def test_a_derived_table_is_confirmed_and_then_passes_the_gate(study, tmp_path):
    """Law: a fit that begins at a right table ends there; without or beside that, no trust."""
    table = tmp_path / "own.toml"
    shutil.copy(table_path("megatron-local"), table)
    gate = ("gate", "--records", str(study), "--coefficients", str(table))
    refused = run(*gate)
    assert refused.exit_code == 1
    assert "cannot read the certificate" in refused.output
    confirmed = run("certify", str(study), "--coefficients", str(table))
    assert confirmed.exit_code == 0, confirmed.output
    certificate = read_certificate(tmp_path / "own.certificate.json")
    assert certificate["kind"] == "confirmed"
    assert certificate["bound"]["covered"] == certificate["bound"]["of"] == 30
    passed = run(*gate)
    assert passed.exit_code == 0, passed.output
    (tmp_path / "own.certificate.json").write_text(
        json.dumps(certificate | {"table": {"name": "own", "sha256": "0" * 64}})
    )
    assert run(*gate).exit_code == 1
    table.write_text(table.read_text().replace("recompute_fc2 = 3", "recompute_fc2 = 2"))
    otherwise = run("certify", str(study), "--coefficients", str(table))
    assert otherwise.exit_code == 1
    assert "experts.fc2_outputs" in otherwise.output


def test_records_of_another_class_are_left_out_and_said(study, tmp_path):
    """Law: a table speaks of what it prices whole: of other calls nothing is fitted or held."""
    path = min(study.glob("specs/*.json"))
    spec = json.loads(path.read_text())
    spec["step"]["recompute"] = "none"
    path.write_text(json.dumps(spec))
    label = spec["topology_name"]
    fitted = run("fit", str(study), "-o", str(tmp_path / "t.toml"))
    assert fitted.exit_code == 0, fitted.output
    excluded = read_certificate(tmp_path / "t.certificate.json")["sightings"]["excluded"]
    assert len(excluded) == 1
    assert label in excluded[0]
    assert "recompute" in excluded[0]
    gate = run("gate", "--records", str(study), "--coefficients", str(tmp_path / "t.toml"))
    assert f"not held against it: tiny {label}" in gate.output


def test_a_planned_bound_that_did_not_hold_fails_the_gate(study):
    """Law: a peak above the bound that admission used fails the table that gave it."""
    digest = hashlib.sha256(table_path("megatron-local").read_bytes()).hexdigest()
    for path in study.glob("specs/*.json"):
        values = json.loads(path.read_text()) | {"coefficients_digest": digest}
        path.write_text(json.dumps(values))
    path = min(study.glob("records/*.jsonl"))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["planned"]["bound_bytes"] = lines[0]["observed"]["working_set_bytes"] - 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = run("gate", "--records", str(study), "--coefficients", "megatron-local")
    assert result.exit_code == 1
    assert result.output.count("planned bound") == 1


def test_a_call_that_ran_out_of_memory_fails_the_gate(study):
    """Law: an admitted plan that ran out of memory was not within its bound."""
    path = min(study.glob("records/*.jsonl"))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0] |= {"outcome": "oom-device", "observed": None}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = run("gate", "--records", str(study), "--coefficients", "megatron-local")
    assert result.exit_code == 1
    assert "ran out of memory" in result.output


def test_corrupted_lines_are_reported(study):
    """Law: of n lines cut short n are reported, and the others are read."""
    before = len(read_recorded(study).sightings)
    cut = 0
    for path in sorted(study.glob("records/*.jsonl"))[:3]:
        lines = path.read_text().splitlines()
        path.write_text("\n".join([*lines[:-1], lines[-1][:200]]) + "\n")
        cut += 1
    recorded = read_recorded(study)
    assert len(recorded.faults) == cut
    assert len(recorded.sightings) == before - cut


def _changed(study: Path, **values: object) -> None:
    for path in study.glob("records/*.jsonl"):
        lines = [{**json.loads(line), **values} for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"outcome": "error", "observed": None}, "outcome error"),
        ({"schema": 99}, "schema 99"),
    ],
)
def test_a_sweep_without_an_observed_call_is_refused(values, reason, study, tmp_path):
    """Law: an all-failed sweep, or records of a later schema, are an error that says why."""
    _changed(study, **values)
    with pytest.raises(RecordedError, match=reason):
        read_recorded(study)
    assert run("fit", str(study), "-o", str(tmp_path / "t.toml")).exit_code == 2


@pytest.mark.parametrize("bad", [-1, float("nan"), 1.5])
def test_bytes_that_are_none_are_faults(bad, study):
    """Law: negative or fractional bytes are said and left out, and the rest is read."""
    path = min(study.glob("records/*.jsonl"))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["observed"]["working_set_bytes"] = bad
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    recorded = read_recorded(study)
    assert len(recorded.faults) == 1
    assert "working_set_bytes" in recorded.faults[0]
    assert recorded.sightings


def test_an_empty_folder_is_refused(tmp_path):
    """Law: no records, no fit."""
    with pytest.raises(RecordedError, match="no records"):
        read_recorded(tmp_path)


def test_the_interval_of_a_coverage():
    """Reference: Clopper-Pearson: none missed of n has a lower end of 0.025 ** (1/n)."""
    low, high = coverage_interval(51, 51)
    assert low == pytest.approx(0.025 ** (1 / 51))
    assert high == 1
    assert np.isclose(coverage_interval(0, 10)[0], 0)
