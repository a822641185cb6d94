"""A plan on a terminal: its figures, the largest terms at the peak, and the ways out."""

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.plan.summary import Plan, degrees
from planner.admission import Refuse, Split
from planner.units import gib


def show(plan: Plan, console: Console) -> None:
    """Print a plan."""
    console.print(Group(*_head(plan), _figures(plan), _terms(plan), *_foot(plan)))


def size(value: int) -> str:
    """Show bytes in GiB and in GB, since published figures use both."""
    return f"{gib(value)} ({value / 1e9:.1f} GB)"


def _head(plan: Plan) -> Sequence[RenderableType]:
    pricer, price = plan.pricer, plan.worst
    counts = pricer.model.parameters
    lines = [
        f"{pricer.model.name}: {counts.total / 1e9:.2f}B parameters, {counts.active / 1e9:.2f}B "
        f"active; {degrees(pricer.topology)}; table {pricer.coefficients.name}",
        f"{plan.batch.tokens} tokens; rank {price.rank} needs most, with {price.local_tokens}",
    ]
    lines += [f"assumed: {assumption}" for assumption in pricer.model.assumptions]
    return [Text(line) for line in lines]


def _figures(plan: Plan) -> Table:
    price = plan.worst
    table = Table("figure", "bytes", "what it is", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    room = plan.decision.sample.room_bytes[price.rank]
    backward = ("backward", price.backward_bytes, "bound and growth")
    both = "the larger of forward and backward"
    whole = [] if price.forward_only else [backward]
    for name, value, what in (
        ("expected", price.expected_bytes, f"inside PyTorch, at {price.peak_moment}"),
        ("bound", price.bound_bytes, "inside PyTorch, with the table's margin and allowance"),
        ("growth", price.growth_bound_bytes, "outside PyTorch, buffers"),
        ("forward", price.forward_bytes, "bound and growth"),
        *whole,
        ("retained", price.retained_bound_bytes, "bound, after forward"),
        ("to admit", price.demand_bytes, both if whole else "forward: no request needs gradients"),
    ):
        table.add_row(name, size(value), what)
    static = plan.static
    what = ", ".join(f"{line.term} {gib(line.bytes)}" for line in static.lines)
    table.add_row("static", size(static.resident_bytes), what)
    runtime = plan.outside
    if runtime.lines:
        what = ", ".join(f"{line.term} {gib(line.bound)}" for line in runtime.lines)
        table.add_row("runtime", size(runtime.bound_bytes), f"outside PyTorch, at most: {what}")
    if room is not None and plan.device_bytes is not None:
        table.add_row("device", size(plan.device_bytes), "of every rank")
        table.add_row("room", size(room), "what static bytes, runtime and held buffers leave")
    return table


def _terms(plan: Plan) -> Table:
    price = plan.worst
    table = Table("term", "bytes", "", box=None, pad_edge=False, title_justify="left")
    table.title = f"expected at {price.peak_moment}"
    table.columns[1].justify = "right"
    whole = max(price.expected_bytes, 1)
    for name, value in sorted(price.terms.items(), key=lambda item: -item[1]):
        if value:
            table.add_row(name, gib(value), f"{100 * value / whole:.1f} %")
    return table


def _foot(plan: Plan) -> Sequence[RenderableType]:
    decision, price = plan.decision, plan.worst
    reasons: dict[str, list[str]] = {}
    for part in price.unpriced:
        reasons.setdefault(part.why, []).append(part.what)
    lines = [f"unpriced: {', '.join(whats)} ({why})" for why, whats in reasons.items()]
    but = f", {len(price.unpriced)} parts not counted" if price.unpriced else ""
    if isinstance(decision, Refuse):
        lines += [f"does not fit{but}: {decision.reason}", *decision.ways_out]
    elif isinstance(decision, Split):
        lines.append(f"does not fit whole{but}; fits in {len(decision.children)} children")
    else:
        lines.append(f"fits{but}")
    return [Text(line) for line in lines]
