"""Stubs: what stands for gradients of weights that are summed straight into their buffer.

Where a matrix product adds a weight's gradient to its buffer by itself, autograd still wants a
tensor of the weight's shape. Transformer Engine makes one of each shape and keeps it
(``get_dummy_wgrad`` of its ``module/base.py``). The embedding and the head have none.
"""

from planner.model import Model
from planner.topology import Topology

Shapes = set[tuple[int, int]]


def stub_elements(
    model: Model, topology: Topology, kinds: set[tuple[bool, bool]], mtp_layers: int = 0
) -> int:
    """Return the elements of one tensor of each shape that a rank's projections have.

    Parameters
    ----------
    kinds
        Of each kind of layer on the rank: whether its mixer is linear attention, and whether its
        feed-forward part has experts.
    mtp_layers
        Multi-token-prediction layers on the rank.
    """
    shapes: Shapes = set()
    for linear, moe in kinds:
        shapes |= _mixer(model, topology.tp, linear=linear) | _feed_forward(
            model, topology, moe=moe
        )
    if mtp_layers:
        shapes |= _mixer(model, topology.tp, linear=False)
        shapes |= _feed_forward(model, topology, moe=model.is_moe)
        shapes.add((model.hidden // topology.tp, 2 * model.hidden))
    return sum(rows * columns for rows, columns in shapes)


def _mixer(model: Model, tp: int, *, linear: bool) -> Shapes:
    hidden = model.hidden
    if linear and (sizes := model.linear_attention) is not None:
        keys, values = sizes.key_heads * sizes.key_dim, sizes.value_heads * sizes.value_dim
        return {(2 * (keys + values + sizes.value_heads) // tp, hidden), (hidden, values // tp)}
    if model.latent_attention is not None:
        return _latent(model, tp)
    queries = model.num_heads * model.head_dim // tp
    keys = max(1, model.num_kv_heads // tp) * model.head_dim
    gates = queries if model.gated_attention else 0
    return {(queries + gates + 2 * keys, hidden), (hidden, queries)}


def _latent(model: Model, tp: int) -> Shapes:
    sizes = model.latent_attention
    assert sizes is not None  # the caller looked
    hidden, heads = model.hidden, model.num_heads // tp
    queries = heads * (sizes.nope_dim + sizes.rope_dim)
    shapes = {
        (sizes.kv_rank + sizes.rope_dim, hidden),
        (heads * (sizes.nope_dim + sizes.value_dim), sizes.kv_rank),
        (hidden, heads * sizes.value_dim),
    }
    if not sizes.query_rank:
        return shapes | {(queries, hidden)}
    return shapes | {(sizes.query_rank, hidden), (queries, sizes.query_rank)}


def _feed_forward(model: Model, topology: Topology, *, moe: bool) -> Shapes:
    widths = [model.dense_hidden // topology.tp]
    if moe:
        widths = [model.expert_hidden // topology.etp]
        if model.shared_expert_hidden:
            widths.append(model.shared_expert_hidden // topology.tp)
    ins = 2 if model.gated_mlp else 1
    return {
        shape for width in widths for shape in ((ins * width, model.hidden), (model.hidden, width))
    }
