"""A checkpoint's layout: which tensor is which rows of which parameter, whatever its spelling."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from planner.model import Model


@dataclass(frozen=True, slots=True)
class Piece:
    """One checkpoint tensor, or one expert's part of it: the runs of rows it takes, in order.

    Parameters
    ----------
    name, shape
        Tensor of the checkpoint.
    parameter, expert
        Parameter of our model, and the global expert whose slice it is.
    rows
        Runs of rows of the parameter (or slice); ``None``: all.
    part
        Index along the tensor's first dimension, where it holds every expert's.
    offset
        What the parameter has more than the tensor: a norm may be written as its scale less one.
    """

    name: str
    shape: tuple[int, ...]
    parameter: str
    expert: int | None = None
    rows: tuple[slice, ...] | None = None
    part: int | None = None
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of one family of checkpoints.

    Parameters
    ----------
    model_type, architecture
        What config.json calls it.
    pieces
        Yields every tensor of a model, spelled as among the names that files hold (none: as the
        family is published).
    config
        Keys of config.json that decide what a model computes.
    described
        Where config.json holds them.
    ignored
        Beginnings of the names of tensors that are no part of the text model.
    """

    model_type: str
    architecture: str
    pieces: Callable[[Model, Collection[str]], Iterator[Piece]]
    config: Callable[[Model], dict[str, Any]]
    described: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    ignored: tuple[str, ...] = ()


def attention(model: Model, source: str, ours: str, norm_offset: float) -> Iterator[Piece]:
    """Yield an attention layer's tensors, ``source`` and ``ours`` naming the layer.

    Megatron lays the projection out by group: its query heads, their gates where there are any, its
    key, its value. Checkpoints hold queries, each head's gate behind it, keys, and values.
    """
    width, dim, groups = model.hidden, model.head_dim, model.num_kv_heads
    heads = model.num_heads // groups
    parts = 2 if model.gated_attention else 1  # of a query head: query, gate
    group = (parts * heads + 2) * dim
    qkv = f"{ours}.linear_qkv.weight"

    def run(group_number: int, first: int) -> slice:
        start = group_number * group + first * dim
        return slice(start, start + dim)

    queries = tuple(
        run(number, part * heads + head)
        for number in range(groups)
        for head in range(heads)
        for part in range(parts)
    )
    shape = (len(queries) * dim, width)
    yield Piece(f"{source}.q_proj.weight", shape, qkv, rows=queries)
    for name, place in (("k", parts * heads), ("v", parts * heads + 1)):
        rows = tuple(run(number, place) for number in range(groups))
        yield Piece(f"{source}.{name}_proj.weight", (groups * dim, width), qkv, rows=rows)
    shape = (width, model.num_heads * dim)
    yield Piece(f"{source}.o_proj.weight", shape, f"{ours}.linear_proj.weight")
    for name in ("q", "k"):
        parameter = f"{ours}.{name}_layernorm.weight"
        yield Piece(f"{source}.{name}_norm.weight", (dim,), parameter, offset=norm_offset)


def rotary(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what newer files (Transformers 5) say of positions in a part of its own."""
    nested = config.get("rope_parameters")
    if not isinstance(nested, Mapping):
        return {}
    return {key: nested[key] for key in ("rope_theta", "partial_rotary_factor") if key in nested}


def gated_mlp(
    source: str, ours: tuple[str, str], hidden: int, width: int, expert: int | None = None
) -> Iterator[Piece]:
    """Yield gate, up and down of one MLP; ``ours`` are its first and second parameter."""
    gate, up = (slice(0, width),), (slice(width, 2 * width),)
    yield Piece(f"{source}.gate_proj.weight", (width, hidden), ours[0], expert, gate)
    yield Piece(f"{source}.up_proj.weight", (width, hidden), ours[0], expert, up)
    yield Piece(f"{source}.down_proj.weight", (hidden, width), ours[1], expert)


def router_and_shared(model: Model, source: str, ours: str) -> Iterator[Piece]:
    """Yield a layer's router and shared expert; ``source`` and ``ours`` name its MLP."""
    yield Piece(f"{source}.gate.weight", (model.num_experts, model.hidden), f"{ours}.router.weight")
    if model.shared_expert_hidden:
        shared = f"{ours}.shared_experts"
        both = (f"{shared}.linear_fc1.weight", f"{shared}.linear_fc2.weight")
        yield from gated_mlp(
            f"{source}.shared_expert", both, model.hidden, model.shared_expert_hidden
        )
    if model.shared_expert_gate:
        name = f"{source}.shared_expert_gate.weight"
        yield Piece(name, (1, model.hidden), f"{ours}.shared_experts.gate_weight")


def each_expert(model: Model, source: str, ours: str) -> Iterator[Piece]:
    """Yield the experts' tensors, each expert with its own."""
    both = (f"{ours}.experts.fc1.weight", f"{ours}.experts.fc2.weight")
    for expert in range(model.num_experts):
        name = f"{source}.experts.{expert}"
        yield from gated_mlp(name, both, model.hidden, model.expert_hidden, expert)


def all_experts(model: Model, source: str, ours: str) -> Iterator[Piece]:
    """Yield the experts' tensors where two hold those of all experts."""
    count, hidden, width = model.num_experts, model.hidden, model.expert_hidden
    for name, shape, parameter in (
        ("gate_up_proj", (count, 2 * width, hidden), "fc1"),
        ("down_proj", (count, hidden, width), "fc2"),
    ):
        for expert in range(count):
            where = f"{ours}.experts.{parameter}.weight"
            yield Piece(f"{source}.experts.{name}", shape, where, expert, part=expert)
