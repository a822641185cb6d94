"""Price a batch on a topology: what every rank needs, and whether it fits.

Exit code: 0 it fits (or no device was given), 3 it does not fit as it is, 2 bad input.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pipeline.named import named_device, named_model, with_layers
from pipeline.plan.page import page
from pipeline.plan.priced import require_priced
from pipeline.plan.recompute import recomputed
from pipeline.plan.routing import routed
from pipeline.plan.summary import Plan, summary
from pipeline.plan.table import show
from planner.batch import Batch
from planner.coefficients import Coefficients
from planner.errors import ConfigError, PlannerError
from planner.memory import MemorySample
from planner.plan_report import PlanReport
from planner.pricer import Pricer, compile_pricer
from planner.requests import read_requests
from planner.state import LiveState
from planner.step import Step
from planner.topology import Topology

FITS, BAD_INPUT, DOES_NOT_FIT = 0, 2, 3

Degree = Annotated[int, typer.Option(min=1, rich_help_panel="topology")]


def run(
    model: Annotated[str, typer.Option(help="name in conf/model, or path of a config.json")],
    layers: Annotated[int | None, typer.Option(help="layers instead of the model's own")] = None,
    tp: Degree = 1,
    cp: Degree = 1,
    ep: Degree = 1,
    etp: Degree = 1,
    pp: Degree = 1,
    dp: Degree = 1,
    tokens: Annotated[int | None, typer.Option(help="tokens of a call over all ranks")] = None,
    rank_tokens: Annotated[
        str | None, typer.Option(help="tokens of each (dp, cp) rank: A,B,…, cp fastest")
    ] = None,
    requests: Annotated[
        Path | None, typer.Option(help="JSON: lengths, or requests with shared prefixes")
    ] = None,
    recompute: Annotated[str, typer.Option(help="full, block, selective or none")] = "full",
    recompute_modules: Annotated[
        str | None, typer.Option(help="with selective: Megatron's names, core_attn,mlp,…")
    ] = None,
    recompute_layers: Annotated[
        int | None,
        typer.Option(
            min=1, help="with block: checkpointed layers of a stage; with full: of a checkpoint"
        ),
    ] = None,
    lora_rank: Annotated[int, typer.Option(help="rank of the adapters; 0: all is trained")] = 8,
    adapters: Annotated[
        str | None,
        typer.Option(help="where they lie: experts, or all; by default as the table has them"),
    ] = None,
    compiled: Annotated[bool, typer.Option(help="whether each layer is compiled")] = False,
    routing: Annotated[
        str, typer.Option(help="balanced, worst, or a JSON file of measured shares")
    ] = "balanced",
    allowance: Annotated[
        float | None, typer.Option(min=1, help="factor on routed rows instead of the table's")
    ] = None,
    dispatcher: Annotated[str, typer.Option(help="auto, alltoall, hybridep, …")] = "auto",
    head_chunk: Annotated[int, typer.Option(help="tokens of a chunk of the head")] = 512,
    device: Annotated[
        str | None, typer.Option(help="name in conf/device, or an amount such as 80GiB")
    ] = None,
    held_tokens: Annotated[
        int, typer.Option(min=0, help="padded tokens that the held HybridEP buffer takes")
    ] = 0,
    coefficients: Annotated[
        str, typer.Option(help="table: a shipped name, or the path of a .toml")
    ] = "megatron-local",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    html: Annotated[Path | None, typer.Option(help="also write a page here")] = None,
    report: Annotated[
        Path | None, typer.Option(help="also write the decision here, for peakcast replay")
    ] = None,
) -> None:
    """Price a batch on a topology: what every rank needs, and whether it fits."""
    try:
        topology = Topology(pp=pp, dp=dp, cp=cp, tp=tp, ep=ep, etp=etp)
        capacity = named_device(device) if device is not None else None
        table = Coefficients.load(coefficients)
        pricer = compile_pricer(
            with_layers(named_model(model), layers),
            topology,
            Step(
                **recomputed(recompute, recompute_modules, recompute_layers),
                lora_rank=lora_rank,
                adapters=adapters or str(table.only("adapters") or "experts"),
                compiled=compiled,
                dispatcher=dispatcher,
                head_chunk=head_chunk,
                device="cpu" if capacity is None else "cuda",
            ),
            coefficients=table,
            routing=routed(routing, allowance),
        )
        batch = _batch(topology, tokens, rank_tokens, requests)
        require_priced(pricer, batch)
        plan = _decide(pricer, batch, capacity, held_tokens)
        for path, text in _files(plan, html, report):
            path.write_text(text, encoding="utf-8")
    except (PlannerError, OSError) as error:
        typer.echo(f"peakcast plan: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from error
    if as_json:
        sys.stdout.write(json.dumps(summary(plan), indent=1) + "\n")
    else:
        show(plan, Console())
    raise typer.Exit(FITS if plan.fits else DOES_NOT_FIT)


def _decide(pricer: Pricer, batch: Batch, device: int | None, held_tokens: int) -> Plan:
    """Decide with what a device has beside static bytes, the held buffer and the runtime."""
    rooms: list[int | None] = [None] * pricer.topology.world
    if device is not None:
        held = pricer.buffer_bytes(held_tokens)
        for price in pricer.price_ranks(batch, LiveState(held_tokens)):
            static = pricer.static(price.rank).resident_bytes
            runtime = pricer.outside(static + price.bound_bytes).bound_bytes
            rooms[price.rank] = max(0, device - static - held - runtime)
    sample = MemorySample(room_bytes=tuple(rooms), held_tokens=held_tokens)
    return Plan(pricer, batch, device, pricer.admit(batch, sample, allow_unpriced=True))


def _files(plan: Plan, html: Path | None, report: Path | None) -> list[tuple[Path, str]]:
    found: list[tuple[Path, str]] = []
    if html is not None:
        found.append((html, page(plan)))
    if report is not None:
        recorded = PlanReport.of(plan.pricer, plan.batch, plan.decision, allow_unpriced=True)
        found.append((report, recorded.to_json() + "\n"))
    return found


def _batch(
    topology: Topology, tokens: int | None, rank_tokens: str | None, requests: Path | None
) -> Batch:
    """Return the batch that the options name.

    Raises
    ------
    ConfigError
        When not exactly one of the three is given.
    """
    if sum(option is not None for option in (tokens, rank_tokens, requests)) != 1:
        raise ConfigError("give one of --tokens, --rank-tokens, --requests")
    if requests is not None:
        return Batch(requests=read_requests(requests))
    if rank_tokens is not None:
        try:
            return Batch(rank_tokens=[int(part) for part in rank_tokens.split(",")])
        except ValueError as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"--rank-tokens is a list such as 105200,89553; got {rank_tokens!r}"
            ) from error
    assert tokens is not None
    if tokens < topology.dp:
        raise ConfigError(
            f"--tokens {tokens} leaves some of {topology.dp} dp replicas without any; "
            f"give at least {topology.dp}"
        )
    share, more = divmod(tokens, topology.dp)
    return Batch(requests=[share + (replica < more) for replica in range(topology.dp)])
