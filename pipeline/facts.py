"""The published allocator facts beside what traced cells say, as Markdown."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jobs.record import RankRecord
from jobs.spec import CellSpec
from pipeline.store import Cell, Store

GB = 1e9
LAYERS = 8
"""Layers of the published measurements."""

ROUTED = (
    "experts.dispatched_inputs",
    "experts.fc1_outputs",
    "experts.fc2_inputs",
    "experts.fc2_outputs",
    "experts.adapter_intermediates",
)
ROUTER = ("router.scores", "router.map", "dispatch.permutation")


@dataclass(frozen=True, slots=True)
class Fact:
    """One published figure: where it was seen, how it reads in a record, and what may differ."""

    what: str
    topology: str
    temperature: str
    published: str
    traced: Callable[[CellSpec, RankRecord], str]
    note: str = ""


def _routed(spec: CellSpec, record: RankRecord) -> str:
    assert record.observed is not None
    rows = record.observed.routed_rows[0]
    live = sum(record.observed.terms.get(term, 0) for term in ROUTED)
    return f"{live / spec.step.itemsize / rows:,.1f}"


def _per_token(*terms: str, each_layer: bool = False) -> Callable[[CellSpec, RankRecord], str]:
    def read(spec: CellSpec, record: RankRecord) -> str:
        assert record.observed is not None
        assert record.planned is not None
        live = sum(record.observed.terms.get(term, 0) for term in terms)
        layers = spec.model.num_layers if each_layer else 1
        return f"{live / record.planned.local_tokens / layers:,.0f} B"

    return read


def _router_state(spec: CellSpec, record: RankRecord) -> str:
    kept = _per_token(*ROUTER, each_layer=True)(spec, record)
    shared = _per_token("shared.fc1_outputs", "shared.activation")(spec, record)
    return f"{kept} + {shared}"


def _held(spec: CellSpec, record: RankRecord) -> str:
    assert record.observed is not None
    held = record.observed.held_over_bytes
    return f"{held / GB:.2f} GB, {held / GB / spec.model.num_layers:.2f} a layer"


def _peak(_: CellSpec, record: RankRecord) -> str:
    assert record.observed is not None
    return f"{record.observed.peak_bytes / GB:.2f} GB"


FACTS = (
    Fact("elements per routed row at the peak", "ep1_cp2", "cold", "11,792", _routed),
    Fact(
        "shared expert's return, before and behind its gate, per token",
        "ep1_cp2",
        "cold",
        "4,096 + 4,096 B",
        _per_token("shared.return"),
        "2 B of the gate itself",
    ),
    Fact(
        "the same at EP2",
        "ep2_cp2",
        "cold",
        "4,096 + 4,096 B",
        _per_token("shared.return"),
    ),
    Fact(
        "router and dispatch state of a layer, and the shared expert's FC1 output and activation, "
        "per token",
        "ep1_cp2",
        "cold",
        "6.4 KB",
        _router_state,
    ),
    Fact("held over between calls", "ep2_cp2", "warm", "8.4 GB, about 1 a layer", _held),
    Fact(
        "peak of the cold call",
        "ep2_cp2",
        "cold",
        "34.8-35.05 GB",
        _peak,
    ),
    Fact("peak of the warm call above its start", "ep2_cp2", "warm", "25.5 GB", _peak),
)

PAIRS = (
    ("ep2_cp2", False, (34.7, 33.5)),
    ("ep1_cp2", False, (51.9, 46.0)),
    ("ep1_cp2", True, (51.9, 46.0)),
)
"""Whether dispatchers are taken to have let go of their state, and the two ranks' published cold
peaks, GB. Which rank had which is not published: the higher is set beside the larger shard."""

GARBAGE = """
The published EP1 peaks hold 12 to 15 GB more than the tensors of these layers: garbage that a
compiled layer's first recompute leaves to the collector, or weights counted in that column alone
(`docs/experiments/compile-garbage.md`). Cold figures of EP1 may contain either; the EP2 figures are
explained without. The bound of `art-traced` allows for it where layers are compiled.
"""


def page(store: Store) -> str:
    """Return the page: the published facts, then every cell's expected and observed bytes."""
    lines = [
        "# Full size, without a device",
        "",
        "Written by `peakcast facts` from the records of `python -m pipeline study=full_scale`:",
        "Qwen3.6-35B-A3B on fake ranks, 194,753 tokens in ten requests. GB are 1e9 bytes.",
        "",
        f"## Published allocator facts ({LAYERS} layers, even routing)",
        "",
        "| fact | where | published | traced | |",
        "|---|---|---|---|---|",
    ]
    lines += [_fact(fact, store) for fact in FACTS]
    lines += ["", *_pairs(store)]
    lines += [
        "",
        "## Expected against observed: the working set of each call",
        "",
        _verdict(store),
        "",
        "| layers | topology | routing | call | rank | tokens | expected GB | observed GB | "
        "difference | bound GB | held over GB | unattributed |",
        "|--:|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
        *(_row(spec, record) for spec, record in _observed(store)),
    ]
    return "\n".join(lines) + "\n"


def _verdict(store: Store) -> str:
    """Say how far expected is from observed at most, and how many calls stay within their bound."""
    seen = [
        (record.planned, record.observed)
        for _, record in _observed(store)
        if record.planned is not None and record.observed is not None
    ]
    worst = max(abs(p.expected_bytes / o.working_set_bytes - 1) for p, o in seen)
    unattributed = max(o.unattributed_bytes / o.working_set_bytes for _, o in seen)
    covered = sum(o.working_set_bytes <= p.bound_bytes for p, o in seen)
    return (
        f"{len(seen)} calls: expected is at most {100 * worst:.3f} % from observed; {covered} stay "
        f"within their bound; at most {100 * unattributed:.3f} % of a peak is unattributed."
    )


def _fact(fact: Fact, store: Store) -> str:
    found = [
        fact.traced(spec, record)
        for spec, record in _observed(store)
        if spec.topology_name == fact.topology
        and spec.model.num_layers == LAYERS
        and spec.weights.routing == "balanced"
        and not spec.step.release_dispatcher_state
        and spec.workload.requests
        and spec.workload.gradients
        and record.temperature == fact.temperature
    ]
    traced = found[0] if found else "not in these records"
    where = f"{fact.topology} {fact.temperature}"
    return f"| {fact.what} | {where} | {fact.published} | {traced} | {fact.note} |"


def _pairs(store: Store) -> list[str]:
    """Return the uneven shards that the published predictions imply, beside the observed pairs."""
    lines = [
        "## Uneven shards of the published call: each rank, cold",
        "",
        "| topology | dispatcher state | rank | tokens | expected GB | bound GB | published GB |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for topology, released, published in PAIRS:
        for spec, record in _observed(store):
            if (
                spec.topology_name == topology
                and spec.model.num_layers == LAYERS
                and spec.step.release_dispatcher_state == released
                and spec.workload.rank_tokens
                and spec.workload.gradients
                and record.temperature == "cold"
                and record.planned is not None
            ):
                planned = record.planned
                lines.append(
                    f"| {topology} | {'released' if released else 'kept'} | {record.rank} "
                    f"| {planned.local_tokens:,} | {planned.expected_bytes / GB:.2f} "
                    f"| {planned.bound_bytes / GB:.2f} | {published[record.rank]} |"
                )
    return [*lines, GARBAGE.rstrip()]


def _observed(store: Store) -> Iterator[tuple[CellSpec, RankRecord]]:
    cells: list[Cell] = sorted(
        store.cells, key=lambda cell: cell.spec.model.num_layers if cell.spec else 0
    )
    for cell in cells:
        for record in cell.records:
            if cell.spec is not None and record.measured is not None and record.planned:
                yield cell.spec, record


def _row(spec: CellSpec, record: RankRecord) -> str:
    planned, seen = record.planned, record.observed
    assert planned is not None
    assert seen is not None
    routing = spec.weights.routing
    routing += f" {spec.weights.imbalance:g}" if routing == "skewed" else ""
    routing += ", shards" if spec.workload.rank_tokens else ""
    routing += "" if spec.workload.gradients else ", forward alone"
    routing += ", state released" if spec.step.release_dispatcher_state else ""
    difference = 100 * (planned.expected_bytes / seen.working_set_bytes - 1)
    unattributed = 100 * seen.unattributed_bytes / seen.working_set_bytes
    return (
        f"| {spec.model.num_layers} | {spec.topology_name} | {routing} | {record.temperature} "
        f"| {record.rank} | {planned.local_tokens:,} | {planned.expected_bytes / GB:.3f} "
        f"| {seen.working_set_bytes / GB:.3f} | {difference:+.3f} % "
        f"| {planned.bound_bytes / GB:.2f} | {seen.held_over_bytes / GB:.3f} "
        f"| {unattributed:.3f} % |"
    )
