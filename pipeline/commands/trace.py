"""Derive copy counts from traces on fake ranks, and write them as a coefficient table.

Exit code: 0 written, 1 a trace failed, 2 bad input.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from jobs.launch import run_module
from jobs.spec import Calls, CellSpec, Meter, Weights, Workload
from pipeline.config import topology_name
from pipeline.derive import Finding, Sample, findings, sample_of, table_text, text_of
from pipeline.named import named_model
from pipeline.output import require_writable, write
from planner.coefficients import Coefficients
from planner.errors import ConfigError, PlannerError
from planner.model import Model
from planner.step import Step
from planner.topology import Topology

BAD_INPUT, FAILED = 2, 1

CLASSES = (
    ("alltoall", Topology()),
    ("alltoall", Topology(cp=2)),
    ("alltoall", Topology(dp=2, ep=2)),
    ("alltoall", Topology(cp=2, ep=2)),
    ("hybridep", Topology(dp=2, ep=2)),
    ("hybridep", Topology(cp=2, ep=2)),
)
"""Dispatchers and topologies that are traced: each is a class of its own."""

FORWARD_ONLY = CLASSES[3], CLASSES[5]
"""Those that are traced without gradients as well, to compare: their copies are not solved for."""


def run(
    model: Annotated[str, typer.Option(help="name in conf/model, or path of a config.json")],
    out: Annotated[Path, typer.Option(help="coefficient table to write, ending in .toml")],
    like: Annotated[
        str, typer.Option(help="table to compare with, and to take all but copies from")
    ] = "megatron-local",
    adapters: Annotated[str, typer.Option(help="where adapters lie: experts, or all")] = "experts",
    layers: Annotated[
        tuple[int, int], typer.Option(help="layers of the smaller and the larger trace")
    ] = (4, 6),
    tokens: Annotated[
        tuple[int, int], typer.Option(help="tokens of a rank in the smaller and the larger trace")
    ] = (65_536, 163_840),
) -> None:
    """Derive copy counts from traces on fake ranks, and write them as a coefficient table."""
    console = Console()
    try:
        require_writable(out, ".toml")
        if not (0 < layers[0] < layers[1] and 0 < tokens[0] < tokens[1]):
            raise ConfigError(
                f"the smaller trace comes first: got --layers {layers[0]} {layers[1]} and --tokens "
                f"{tokens[0]} {tokens[1]}"
            )
        table, source = Coefficients.load(like), text_of(like)
        sizes = list(zip(layers, tokens, strict=True))
        traced = named_model(model)
        cells = [
            list(_cells(traced, like, t, Step(dispatcher=d, adapters=adapters), sizes, gradients))
            for classes_, gradients in ((CLASSES, True), (FORWARD_ONLY, False))
            for d, t in classes_
        ]
        traces = iter(_traced([cell for cells_ in cells for cell in cells_]))
        classes: list[tuple[Sample, list[Finding]]] = []
        for of_class in cells:
            samples = [sample_of(next(traces)) for _ in of_class]
            classes.append((samples[0], findings(samples, table)))
            _show(console, of_class[0], classes[-1][1])
        today = datetime.now(UTC).date().isoformat()
        text = table_text(classes[: len(CLASSES)], table, source, name=out.stem, date=today)
        write(out, text)
        Coefficients.load(str(out))  # raises where it does not hold together
    except PlannerError as error:
        typer.echo(f"peakcast trace: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from error
    console.print(f"table    {out}", markup=False)


def _cells(
    model: Model,
    like: str,
    topology: Topology,
    step: Step,
    sizes: list[tuple[int, int]],
    gradients: bool,
) -> Iterator[CellSpec]:
    for layers, tokens in sizes:
        yield CellSpec(
            model=replace(model, num_layers=layers),
            topology=topology,
            topology_name=topology_name(topology),
            step=step,
            weights=Weights(name="even"),
            workload=Workload(
                name="even", requests=(tokens * topology.cp,) * topology.dp, gradients=gradients
            ),
            calls=Calls(name="pair", measured=2),
            meter=Meter(allow_unpriced=True, ranks=(0,)),
            backend="fake",
            coefficients=like,
        )


def _traced(cells: list[CellSpec]) -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        specs = []
        for index, cell in enumerate(cells):
            specs.append(folder / f"{index}.json")
            cell.write(specs[-1])
        traces = folder / "traces.json"
        code = run_module("jobs.trace", *map(str, specs), "--out", str(traces))
        if code:
            sys.exit(FAILED)  # the process has said why
        return json.loads(traces.read_text())  # type: ignore[no-any-return]


def _show(console: Console, cell: CellSpec, found: list[Finding]) -> None:
    """Print where the traces and the given table part, or that they do not."""
    parting = [f for f in found if not f.agrees]
    kind = "" if cell.workload.gradients else " without gradients"
    title = f"{cell.topology_name} {cell.step.dispatcher}{kind}: {len(found) - len(parting)} of "
    console.print(f"{title}{len(found)} copies as in {cell.coefficients}", markup=False)
    if not parting:
        return
    shown = Table("moment", "term", "traced, by size", "table")
    for f in parting:
        shown.add_row(
            str(f.moment), f.term, "  ".join(f"{r:.3f}" for r in f.ratios), f"{f.given:g}"
        )
    console.print(shown)
