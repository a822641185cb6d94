"""The workspace, built and validated offline, against what the tracker's runs really hold."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pipeline.cli import main
from pipeline.dashboard import as_json, workspace
from pipeline.store import NO_TERM, read_store
from pipeline.track import track
from planner.terms import TERMS
from tests.pipeline.test_store import a_cell, write
from tests.pipeline.test_track import inspect, offline_runs, records

FIT_ONLY = {
    "measured_calls",
    "coefficients",
}  # of `pipeline.lineage`, which its own test reads back


def panels_of(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for section in values["spec"]["section"]["panelBankConfig"]["sections"]:
        yield from section["panels"]


def named(panel: dict[str, Any]) -> Iterator[str]:
    """The metrics that a panel names one by one."""
    config = panel["config"]
    for metric in (*config.get("metrics", ()), config.get("xAxis"), config.get("yAxis")):
        if metric:
            yield metric.removeprefix("summary_metrics.").removeprefix("summary:")


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(as_json(workspace("team", "sweeps")))
    return made


def test_the_workspace_is_valid_and_has_the_reports_sections(values: dict[str, Any]) -> None:
    """Reference: the library's own model of a workspace, which validates; the report's contents."""
    sections = values["spec"]["section"]["panelBankConfig"]["sections"]
    shown = [section["name"] for section in sections if section["panels"]]
    assert shown == [
        "Predicted against observed",
        "Error by cell",
        "Growth and held over",
        "Residual by term",
        "Fits",
    ]


def test_every_metric_of_the_workspace_is_one_that_runs_have(
    values: dict[str, Any], tmp_path: Path, stub: ModuleType
) -> None:
    """Reference: a run that the tracker wrote, read back by wandb's own reader."""
    write(tmp_path, stub, a_cell(), 0, "ok", "ok", "ok")
    track(read_store(tmp_path), mode="offline", project="sweeps", group="g")
    (folder,) = offline_runs(tmp_path)
    logged = {key for one in records(folder, "history") for key in one["item"]}
    summary = set(json.loads(inspect(folder, "--summary"))["summary"]) | FIT_ONLY
    found = 0
    for panel in panels_of(values):
        for metric in named(panel):
            assert metric in logged | summary, panel
            found += 1
        pattern = panel["config"].get("metricRegex")
        if pattern and "residual/" not in pattern:  # which terms there are is the model's
            assert any(re.fullmatch(pattern, key) for key in logged), pattern
            found += 1
    assert found > 10


def test_every_term_has_its_family_of_residuals(values: dict[str, Any]) -> None:
    """Reference: the tracker's keys, `rank0/residual/<term>`, for every known term."""
    patterns = [panel["config"].get("metricRegex", "") for panel in panels_of(values)]
    for name in (*(term.name for term in TERMS), NO_TERM):
        key = f"rank0/residual/{name}"
        assert sum(bool(re.fullmatch(pattern, key)) for pattern in patterns) == 1, name


def test_the_command_writes_it_as_json(tmp_path: Path, values: dict[str, Any]) -> None:
    """Reference: the workspace built here; ids that W&B gives at random apart."""
    with pytest.raises(SystemExit) as left:
        main(["dashboard", "team", "--project", "sweeps", "-o", str(tmp_path / "workspace.json")])
    assert left.value.code == 0
    written = json.loads((tmp_path / "workspace.json").read_text())
    titles = [panel["config"].get("chartTitle") for panel in panels_of(written)]
    assert titles == [panel["config"].get("chartTitle") for panel in panels_of(values)]


def test_without_the_extra_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reference: the extra's name in pyproject.toml; `None` in sys.modules cannot be imported."""
    monkeypatch.delitem(sys.modules, "pipeline.dashboard", raising=False)
    monkeypatch.setitem(sys.modules, "wandb_workspaces.workspaces", None)
    with pytest.raises(SystemExit) as left:
        main(["dashboard", "team"])
    assert left.value.code == 2
    assert "pip install 'peakcast[dashboards]'" in capsys.readouterr().err


def test_without_a_key_the_command_names_the_ways_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reference: house rule 7."""
    monkeypatch.setenv("WANDB_API_KEY", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SystemExit) as left:
        main(["dashboard", "team"])
    assert left.value.code == 2
    assert "wandb login" in capsys.readouterr().err
