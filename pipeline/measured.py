"""Measured cells: a published table of peaks as sightings that copies can be fitted on.

A CSV row is a model on a topology under a recompute mode, the lengths that ran, and what a GPU
held. Rows that are no measurement (refused, or a negative control of an older estimator) are left
out with the reason; a row that cannot be read is a fault, and the others count.
"""

import csv
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from pipeline.regress.sighting import Sighting
from planner.errors import ConfigError, PlannerError
from planner.local import localize
from planner.mixers import LinearAttention
from planner.model import Model
from planner.moments import Phase
from planner.step import Step
from planner.topology import Topology
from planner.work import Work

REQUIRED = (
    *("model", "tp", "cp", "ep", "recompute", "lengths", "packed_rows", "rows_busiest_rank"),
    "forward_backward_peak_bytes",
)
CONCENTRATED = 31 / 32
"""Share of the rows that the campaign's biased router sends to the first expert rank."""


class MeasuredError(PlannerError):
    """A table of measured cells that cannot be read at all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredCell:
    """One measured row.

    Parameters
    ----------
    tokens
        Rows of the busiest rank.
    published_bytes
        The published planner's estimate, where the table has one.
    row
        As it was published.
    """

    label: str
    tokens: int
    sighting: Sighting
    published_bytes: int | None
    model: Model
    topology: Topology
    step: Step
    row: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What a table holds: cells, rows left out with the reason, and rows that are wrong."""

    cells: tuple[MeasuredCell, ...]
    excluded: tuple[str, ...]
    faults: tuple[str, ...]


def read_measured(path: Path) -> Measured:
    """Read a CSV of measured cells.

    Raises
    ------
    MeasuredError
        Where the file cannot be opened, lacks a column, or holds no row.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or []
            rows = list(reader)
    except OSError as error:
        raise MeasuredError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise MeasuredError(f"{path} is no CSV: {error}") from error
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        raise MeasuredError(
            f"{path} lacks the columns {', '.join(missing)}; a table of measured cells has "
            f"{', '.join(REQUIRED)}"
        )
    if not rows:
        raise MeasuredError(f"{path} has no rows below its header")
    cells: list[MeasuredCell] = []
    excluded: list[str] = []
    faults: list[str] = []
    models, unfused = _models()
    for number, row in enumerate(rows, start=2):
        status = row.get("status") or "measured"
        if status != "measured":
            excluded.append(f"line {number}: {status}")
            continue
        try:
            cells.append(_cell(row, models, unfused))
        except (PlannerError, ValueError, TypeError) as error:
            faults.append(f"{path.name}:{number}: {error}")
    return Measured(cells=tuple(cells), excluded=tuple(excluded), faults=tuple(faults))


def candidate_cells(measured: Measured) -> dict[str, Sighting]:
    """Return cells that a next campaign could add: each model and topology, nothing recomputed."""
    models, unfused = _models()
    found = {}
    for model in models:
        for axes in ({"tp": "1"}, {"tp": "2"}, {"tp": "4"}, {"tp": "8"}, {"cp": "2"}):
            row = {"model": model, "tp": "1", "cp": "1", "ep": "1", "recompute": "none", **axes}
            row |= {"lengths": "4096x2", "packed_rows": "6964", "execution": "compiled"}
            row |= {"rows_busiest_rank": "6964", "forward_backward_peak_bytes": "1"}
            try:
                cell = _cell(row, models, unfused)
            except PlannerError:  # the topology does not divide the model: no such cell
                continue
            found[cell.label] = cell.sighting
    known = {cell.label for cell in measured.cells}
    return {label: one for label, one in found.items() if label not in known}


@cache
def _models() -> tuple[Mapping[str, Any], frozenset[str]]:
    data = tomllib.loads(
        (resources.files("pipeline") / "measured_models.toml").read_text(encoding="utf-8")
    )
    return data["models"], frozenset(data["fused"]["unfused_eager"])


def _model(name: str, known: Mapping[str, Any]) -> Model:
    if name not in known:
        raise ConfigError(f"model {name!r} is none of {', '.join(known)}")
    sizes = {"num_experts": 0, "top_k": 0, "expert_hidden": 0, **known[name]}
    values = sizes.pop("value_heads", None)
    if values:
        sizes |= {
            "gated_attention": True,
            "full_attention_interval": 4,
            "linear_attention": LinearAttention(
                key_heads=16, key_dim=128, value_heads=values, value_dim=128, conv_width=4
            ),
        }
    return Model(name=name, **sizes)


def sighting_of_row(row: Mapping[str, str]) -> Sighting:
    """Return what one row of a table saw; raises `planner.errors.ConfigError` where it is wrong."""
    return _cell(row, *_models()).sighting


def lengths_of(text: str) -> tuple[int, ...]:
    """Read lengths of sequences: ``1024x2`` or ``19221+19222``."""
    try:
        if "+" in text:
            return tuple(int(part) for part in text.split("+"))
        each, _, count = text.partition("x")
        return (int(each),) * int(count or 1)
    except ValueError as error:
        raise ConfigError(f"lengths {text!r} are neither 1024x2 nor 1000+1024") from error


def _bytes(row: Mapping[str, str], name: str, *, needed: bool = False) -> int | None:
    text = (row.get(name) or "").strip()
    if not text:
        if needed:
            raise ConfigError(f"{name} is empty")
        return None
    value = float(text)
    if not value > 0 or value == float("inf"):
        raise ConfigError(f"{name} = {text} is no positive number of bytes")
    return int(text) if text.isdigit() else round(value)


def _cell(
    row: Mapping[str, str], models: Mapping[str, Any], unfused: frozenset[str]
) -> MeasuredCell:
    model = _model(row["model"], models)
    topology = Topology(
        tp=int(row["tp"]), cp=int(row["cp"]), ep=int(row["ep"]), etp=int(row.get("etp") or 1)
    )
    eager = (row.get("execution") or "compiled") == "eager"
    modules = row["recompute"].removeprefix("selective").strip()
    none = row["recompute"] == "none"
    step = Step(
        recompute="none" if none else "selective",
        recompute_modules=() if none else tuple(modules.split("+")),
        fused_activation=not (eager and model.name in unfused),
        sequence_parallel=row.get("sequence_parallel", "1") == "1",
        lora_rank=int(row.get("lora_rank") or 1),
        dispatcher="alltoall",
    )
    local = localize(model, topology, step)
    lengths = lengths_of(row["lengths"])
    tokens, packed = int(row["rows_busiest_rank"]), int(row["packed_rows"])
    if tokens <= 0 or packed <= 0:
        raise ConfigError(f"{tokens} rows on the busiest rank of {packed}; a call has some")
    segments = len(lengths) + (packed < sum(lengths))
    routed = _rows(row, topology, tokens * model.top_k)
    work = Work(
        local.layers,
        tokens,
        segments,
        routed,
        routed,
        0,
        sum(lengths),
        linear_layers=local.linear_layers,
    )
    seen = {
        None: _bytes(row, "forward_backward_peak_bytes", needed=True),
        Phase.FORWARD: _bytes(row, "forward_peak_cold_bytes"),
        Phase.RETAINED: _bytes(row, "retained_after_forward_bytes"),
    }
    facts = {
        "model": model.name,
        "size": row["lengths"],
        "lora rank": str(step.lora_rank),
        "topology": f"tp{topology.tp} cp{topology.cp} ep{topology.ep}",
        "class": f"{row['recompute']}, {row.get('execution') or 'compiled'}, "
        f"{(row.get('routing') or 'near balanced').split(' (')[0]}",
    }
    label = f"{model.name} {facts['topology']} {facts['class']} {row['lengths']}"
    return MeasuredCell(
        label=label,
        tokens=tokens,
        sighting=Sighting(
            label=label,
            facts=facts,
            local=local,
            work=work,
            rows=routed,
            cell=label,
            seen={phase: size for phase, size in seen.items() if size is not None},
        ),
        published_bytes=_bytes(row, "published_estimate_bytes"),
        model=model,
        topology=topology,
        step=step,
        row=row,
    )


def _rows(row: Mapping[str, str], topology: Topology, pairs: int) -> int:
    """Return routed rows of the rank that receives most, by what the table says of routing.

    ``pairs`` are (token, expert) pairs of one rank: balanced, each rank receives as many.
    """
    routing = row.get("routing") or "near balanced"
    if "31/32" in routing:
        return round(pairs * topology.ep * CONCENTRATED)
    if "balanced" not in routing:
        raise ConfigError(f"routing {routing!r} is neither near balanced nor 31/32 to one rank")
    return pairs
