"""Price a batch on a topology: what every rank needs, and whether it fits.

Exit code: 0 it fits (or no device was given), 3 it does not fit as it is, 2 bad input.
"""

import json
import sys
from pathlib import Path

import typer
from rich.console import Console

from pipeline.named import named_device, named_model, with_layers
from pipeline.output import require_writable, write
from pipeline.plan import options
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


def run(
    model: options.Model,
    layers: options.Layers = None,
    tokens: options.Tokens = None,
    rank_tokens: options.RankTokens = None,
    requests: options.Requests = None,
    forward_only: options.ForwardOnly = False,
    tp: options.Tp = 1,
    cp: options.Cp = 1,
    ep: options.Ep = 1,
    etp: options.Etp = 1,
    pp: options.Pp = 1,
    dp: options.Dp = 1,
    recompute: options.Recompute = "full",
    recompute_modules: options.RecomputeModules = None,
    recompute_layers: options.RecomputeLayers = None,
    lora_rank: options.LoraRank = 8,
    adapters: options.Adapters = None,
    compiled: options.Compiled = False,
    engine: options.Engine = "own",
    routing: options.Routing = "balanced",
    allowance: options.Allowance = None,
    dispatcher: options.Dispatcher = "auto",
    head_chunk: options.HeadChunk = 512,
    coefficients: options.Coefficients = "megatron-local",
    device: options.Device = None,
    expandable: options.Expandable = False,
    held_tokens: options.HeldTokens = 0,
    as_json: options.AsJson = False,
    html: options.Html = None,
    report: options.Report = None,
) -> None:
    """Price a batch on a topology: what every rank needs, and whether it fits."""
    try:
        for path in (html, report):
            if path is not None:
                require_writable(path)
        topology = Topology(pp=pp, dp=dp, cp=cp, tp=tp, ep=ep, etp=etp)
        if expandable and device is None:
            raise ConfigError("--expandable changes a device's room; name one with --device")
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
                engine=engine,
                dispatcher=dispatcher,
                head_chunk=head_chunk,
                device="cpu" if capacity is None else "cuda",
            ),
            coefficients=table,
            routing=routed(routing, allowance),
        )
        batch = _batch(topology, tokens, rank_tokens, requests, gradients=not forward_only)
        require_priced(pricer, batch)
        plan = _decide(pricer, batch, capacity, held_tokens, expandable=expandable)
        for path, text in _files(plan, html, report):
            write(path, text)
    except PlannerError as error:
        typer.echo(f"peakcast plan: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from error
    if as_json:
        sys.stdout.write(json.dumps(summary(plan), indent=1) + "\n")
    else:
        show(plan, Console())
    raise typer.Exit(FITS if plan.fits else DOES_NOT_FIT)


def _decide(
    pricer: Pricer, batch: Batch, device: int | None, held_tokens: int, *, expandable: bool
) -> Plan:
    """Decide with what a device has beside static bytes, the held buffer and the runtime."""
    rooms: list[int | None] = [None] * pricer.topology.world
    if device is not None:
        held = pricer.buffer_bytes(held_tokens)
        for price in pricer.price_ranks(batch, LiveState(held_tokens)):
            static = pricer.static(price.rank).resident_bytes
            runtime = pricer.outside(static + price.bound_bytes, expandable=expandable)
            rooms[price.rank] = max(0, device - static - held - runtime.bound_bytes)
    sample = MemorySample(room_bytes=tuple(rooms), held_tokens=held_tokens)
    decision = pricer.admit(batch, sample, allow_unpriced=True)
    return Plan(pricer, batch, device, decision, expandable)


def _files(plan: Plan, html: Path | None, report: Path | None) -> list[tuple[Path, str]]:
    found: list[tuple[Path, str]] = []
    if html is not None:
        found.append((html, page(plan)))
    if report is not None:
        recorded = PlanReport.of(plan.pricer, plan.batch, plan.decision, allow_unpriced=True)
        found.append((report, recorded.to_json() + "\n"))
    return found


def _batch(
    topology: Topology,
    tokens: int | None,
    rank_tokens: str | None,
    requests: Path | None,
    *,
    gradients: bool,
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
        return Batch(requests=read_requests(requests), gradients=gradients)
    if rank_tokens is not None:
        try:
            shards = [int(part) for part in rank_tokens.split(",")]
            return Batch(rank_tokens=shards, gradients=gradients)
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
    lengths = [share + (replica < more) for replica in range(topology.dp)]
    return Batch(requests=lengths, gradients=gradients)
