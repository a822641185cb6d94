"""Layer bytes: what one layer saves for its own backward, for one token or one routed row.

Shapes of Megatron-core layers with Transformer Engine modules. A tensor that several operators save
counts once; a view keeps its whole storage. ``Step.recompute_modules`` takes out what a recomputed
module leaves to be made again.
"""

from dataclasses import replace

from planner.local import Local

FP32 = 4


def recomputes(local: Local, module: str) -> bool:
    """Whether a module is recomputed, so that its inside is not kept."""
    return local.recompute == "selective" and module in local.recompute_modules


def projected(local: Local) -> int:
    """Return the bytes of an element that a projection keeps of its input.

    In eight bits one, and none of the other width (Transformer Engine's Linear and LayerNormLinear:
    the input quantised for the gradient of the weight); of experts that is not known.
    """
    eight = local.fp8 and not local.moe_layers and local.latent_attention is None
    return 1 if eight and local.linear_attention is None else local.itemsize


def norms(local: Local) -> int:
    """Return inputs of both norms and what they give, of the stream's width; dropout masks."""
    given = 0 if recomputes(local, "layernorm") else 2 * local.hidden * projected(local)
    masks = local.over_sp(2 * local.hidden) if local.dropout else 0
    return local.streamed(2 * local.hidden) + local.over_sp(given) + masks


def fused_norm(local: Local) -> int:
    """Return what a dense layer keeps less where its FC1, norm included, is recomputed."""
    if recomputes(local, "mlp") and not recomputes(local, "layernorm"):
        return local.over_sp(local.hidden * projected(local))
    return 0


def gathered(local: Local) -> int:
    """Return a stream gathered over tp, whole."""
    return local.hidden * local.itemsize


def attention(local: Local) -> int:
    """Return inputs and output of attention's core, and what flash attention keeps of scores.

    Grouped: the fused projection (values are a view of it), rotated queries and keys, the output;
    with norms of queries and keys also their copy and what they give; with a gate also the gate
    behind its sigmoid and the gated output. In eight bits the output is kept once more, as the
    input of its projection.
    """
    if local.latent_attention is not None:
        return _latent(local)
    queries, keys = local.query_width, local.kv_width
    elements = _projected(local) + queries
    elements += queries + keys if local.rotary else 0
    elements += 2 * queries if local.qk_norm else 0
    elements += 2 * queries if local.gated_attention else 0
    again = queries if projected(local) < local.itemsize else 0
    return elements * local.itemsize + again + _statistics(local)


def _latent(local: Local) -> int:
    """Return latents around their norms, projected and joined queries and keys, values, output."""
    sizes = local.latent_attention
    assert sizes is not None  # the caller looked
    head = sizes.nope_dim + sizes.rope_dim
    down = 2 * sizes.query_rank + 2 * sizes.kv_rank + sizes.rope_dim
    up = local.num_heads * (head + sizes.nope_dim + sizes.value_dim)
    joined = local.num_heads * (2 * head + sizes.value_dim)
    out = local.num_heads * sizes.value_dim
    inner = 0 if recomputes(local, "mla_up_proj") else up + joined
    return (down + inner + out) * local.itemsize + _statistics(local)


def _projected(local: Local) -> int:
    """Return the fused projection's width, gate included.

    With fewer key heads than tensor-parallel ranks Megatron-core gathers the whole projection and
    takes views of it.
    """
    queries = local.query_width * (2 if local.gated_attention else 1)
    if local.whole_kv_width < local.tp * local.head_dim:
        return local.tp * queries + 2 * local.whole_kv_width
    return queries + 2 * local.kv_width


def _statistics(local: Local) -> int:
    """Return the log-sum-exp of each query, which flash attention keeps in place of scores."""
    return FP32 * local.num_heads if local.attention == "flash" else 0


def scores(local: Local) -> int:
    """Return what unfused attention keeps where it is not recomputed: `whole_scores`."""
    if local.attention != "unfused" or recomputes(local, "core_attn"):
        return 0
    return whole_scores(local)


def whole_scores(local: Local) -> int:
    """Return probabilities of a query for every position of its sequence, of each head.

    With dropout also what it leaves of them, and its mask.
    """
    one = local.num_heads * local.sequence
    return one * local.itemsize + (one * (local.itemsize + 1) if local.dropout else 0)


def dense(local: Local) -> int:
    """Return output of FC1 and input of FC2; two halves more where the activation is unfused."""
    if recomputes(local, "mlp"):
        return 0
    unfused = 2 if local.gated_mlp and not local.fused_activation else 0
    inner = (_ins(local) + unfused) * local.itemsize + projected(local)
    return inner * local.dense_hidden


def router(local: Local) -> int:
    """Return logits and scores fp32, the map, the chosen experts, and the row-id map.

    With DeepEP that map is of the tokens received, and counted there.
    """
    if recomputes(local, "moe"):
        return 0
    width = (2 * FP32 + 1) * local.num_experts + 12 * local.top_k
    rows = 0 if local.dispatcher == "deepep" else FP32 * (2 * local.num_experts + 1)
    return local.over_sp(width + rows)


def shared(local: Local) -> int:
    """Return shared expert: output of FC1, input of FC2, and what its gate multiplies."""
    if recomputes(local, "moe") or recomputes(local, "shared_experts") or not local.shared_hidden:
        return 0
    gate = local.streamed(local.hidden) if local.shared_gate else 0
    return (_ins(local) + 1) * local.shared_hidden * local.itemsize + gate


def routed(local: Local) -> int:
    """Return routed rows: the experts' input, output of FC1, input of FC2, and their probability.

    A plain activation is kept beside its weighted form; a gated one is weighted in one operator,
    or unfused keeps both halves beside it.
    """
    if recomputes(local, "moe"):
        return 0
    inner = 1 if local.gated_mlp and local.fused_activation else 2
    inner += 1 if local.gated_mlp and not local.fused_activation else 0
    inner = 0 if recomputes(local, "moe_act") else inner
    elements = local.hidden + (_ins(local) + inner) * local.expert_hidden
    return local.routed(elements * local.itemsize + FP32)


def _ins(local: Local) -> int:
    return 2 if local.gated_mlp else 1


def unrecomputed(local: Local) -> Local:
    """Return the rank as if nothing were recomputed, to price what a module makes again."""
    return replace(local, recompute="none")
