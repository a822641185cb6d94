"""Dense adapters: widths of the LoRA adapters on attention, Gated DeltaNet and shared experts."""

from planner.model import Model
from planner.units import ceil_div


def layer_width(model: Model, tp: int, *, linear: bool, moe: bool) -> int:
    """Return inputs and outputs of a layer's dense adapters, in elements for each unit of rank.

    An adapter beside a column-parallel projection has its first factor whole and its second divided
    by tp; beside a row-parallel one it is the other way round.

    Parameters
    ----------
    linear, moe
        Whether the layer has linear attention, and a shared expert beside routed ones.
    """
    inside = [_mixer(model, linear=linear)]
    if moe and model.shared_expert_hidden:
        shared = model.shared_expert_hidden
        inside.append((shared * (2 if model.gated_mlp else 1), shared))
    return sum(2 * model.hidden + ceil_div(first + second, tp) for first, second in inside)


def _mixer(model: Model, *, linear: bool) -> tuple[int, int]:
    """Return outputs of the mixer's first projection, and inputs of its second."""
    if linear:
        sizes = model.linear_attention
        assert sizes is not None  # the layer has one
        keys, values = sizes.key_heads * sizes.key_dim, sizes.value_heads * sizes.value_dim
        return 2 * (keys + values + sizes.value_heads), values
    queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    return queries * (2 if model.gated_attention else 1) + 2 * keys, queries
