"""Dashboard: the W&B workspace of a project of sweeps, as code. A door to wandb beside the tracker.

It is made of the metrics that `pipeline.track` and `pipeline.lineage` write, and of those alone:
what a cell's run sums up (one bar or point a run), and what it logs call by call for each rank.
"""

import os

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when wandb is imported

import json
from typing import Any

import wandb
import wandb_workspaces.reports.v2.interface as panels
import wandb_workspaces.workspaces as workspaces

from pipeline.track import TrackerError
from planner.terms import TERMS

NAME = "Peakcast"
EXPECTED = "max_planned_expected_bytes"
BOUND = "max_planned_bound_bytes"
OBSERVED = "max_observed_working_set_bytes"
ERROR = "worst_abs_error_percent"
RANK = r"rank[0-9]+"


def workspace(entity: str, project: str) -> workspaces.Workspace:
    """Return the workspace of ``project``; nothing is sent."""
    return workspaces.Workspace(
        entity=entity,
        project=project,
        name=NAME,
        sections=[
            _section("Predicted against observed", _predicted_against_observed()),
            _section("Error by cell", _error_by_cell()),
            _section("Growth and held over", _outside()),
            _section("Residual by term", _residual_by_term()),
            _section("Fits", _fits()),
        ],
        settings=workspaces.WorkspaceSettings(x_axis="call"),
        runset_settings=workspaces.RunsetSettings(
            groupby=[workspaces.Config("topology_name"), workspaces.Config("weights.name")],
            order=[workspaces.Ordering(workspaces.Summary(ERROR), ascending=False)],
        ),
    )


def as_json(made: workspaces.Workspace) -> str:
    """Return a workspace as the JSON that W&B keeps of it; also what checks it.

    Raises
    ------
    pydantic.ValidationError
        For a panel or a setting that W&B does not know.
    """
    values = made._to_model().model_dump(mode="json", by_alias=True, exclude_none=True)
    return json.dumps(values, indent=1) + "\n"


def send(made: workspaces.Workspace) -> str:
    """Save a workspace in its project; return its address.

    Raises
    ------
    TrackerError
        When W&B refuses it or cannot be reached.
    """
    try:
        made.save()  # type: ignore[no-untyped-call]
    except (wandb.Error, ValueError, OSError) as error:
        raise TrackerError(
            f"W&B did not take the workspace: {type(error).__name__}: {error}; check the entity "
            "and `wandb login`, or write it to a file with --output"
        ) from error
    return str(made.url)


def _section(name: str, inside: list[Any]) -> workspaces.Section:
    return workspaces.Section(name=name, panels=inside, is_open=True)


def _predicted_against_observed() -> list[Any]:
    return [
        panels.ScatterPlot(
            title="observed over expected, fullest rank and call",
            x=panels.SummaryMetric(EXPECTED),
            y=panels.SummaryMetric(OBSERVED),
            regression=True,
        ),
        panels.BarPlot(
            title="expected, observed and bound, bytes",
            metrics=[EXPECTED, OBSERVED, BOUND],
        ),
        panels.ScalarChart(
            title="share of calls within the bound, lowest cell",
            metric="coverage",
            groupby_aggfunc="min",
        ),
    ]


def _error_by_cell() -> list[Any]:
    return [
        panels.BarPlot(
            title="worst |error| of any rank and call, %",
            metrics=[ERROR],
            groupby_aggfunc="max",
        ),
        _by_call("error of each rank, call by call, %", "error_percent"),
    ]


def _outside() -> list[Any]:
    return [
        panels.BarPlot(
            title="growth: worst difference, bytes",
            metrics=["worst_abs_growth_error_bytes"],
            groupby_aggfunc="max",
        ),
        _by_call("growth predicted and observed, bytes", "(planned|observed)_growth_bytes"),
        panels.BarPlot(
            title="held over: worst difference, bytes",
            metrics=["worst_abs_held_over_error_bytes"],
            groupby_aggfunc="max",
        ),
        _by_call("held over predicted and observed, bytes", "(planned|observed)_held_over_bytes"),
    ]


def _residual_by_term() -> list[Any]:
    families = dict.fromkeys(term.name.partition(".")[0] for term in TERMS)
    found = [_by_call("residual of all terms, bytes", "residual_bytes")]
    found += [_by_call(f"residual of {one}, bytes", rf"residual/{one}\..*") for one in families]
    return [*found, _by_call("bytes that no term explains", "residual/unattributed")]


def _fits() -> list[Any]:
    return [
        panels.ScalarChart(
            title="calls that the newest table rests on",
            metric="measured_calls",
            groupby_aggfunc="max",
        ),
        panels.WeavePanelSummaryTable(table_name="coefficients"),
    ]


def _by_call(title: str, pattern: str) -> panels.LinePlot:
    """Return a line for each rank, over the calls of a process."""
    return panels.LinePlot(
        title=title, x="call", metric_regex=f"{RANK}/{pattern}", plot_type="line", title_x="call"
    )
