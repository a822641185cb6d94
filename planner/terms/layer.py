"""Layer: the working set of the layer whose backward runs: what is made again, and gradients."""

from planner import layer_bytes
from planner.kept import Checkpoint
from planner.local import Local
from planner.size import Size
from planner.term import term

SOURCE = "derivation: tensors of one layer's backward (planner/layer_bytes.py)"


@term(
    "layer.recomputed",
    what="activations of the checkpoint that is recomputed",
    when=lambda local: bool(local.kept.again),
    source=SOURCE,
)
def recomputed(local: Local) -> Size:
    """All that the layers of the heaviest checkpoint save: tokens and routed rows."""
    sizes = [_saved_by(checkpoint, local) for checkpoint in local.kept.again]
    return max(sizes, key=lambda size: size.tokens + local.top_k * size.rows)


def _saved_by(checkpoint: Checkpoint, local: Local) -> Size:
    tokens = checkpoint.layers * layer_bytes.norms(local)
    tokens += checkpoint.attention * (layer_bytes.attention(local) + layer_bytes.scores(local))
    tokens += checkpoint.dense * layer_bytes.dense(local)
    tokens += checkpoint.moe * (layer_bytes.router(local) + layer_bytes.shared(local))
    if local.linear_attention is not None:
        sizes = local.linear_attention
        keys, values = sizes.key_heads * sizes.key_dim, sizes.value_heads * sizes.value_dim
        tokens += checkpoint.linear * local.over_tp((4 * keys + 8 * values) * local.itemsize)
    return Size(tokens=tokens, rows=checkpoint.moe * layer_bytes.routed(local))


@term(
    "layer.modules",
    what="inside of the modules that selective recompute makes again, one layer at a time",
    when=lambda local: local.recompute == "selective",
    source=SOURCE,
)
def modules(local: Local) -> Size:
    """(tokens, …) and (routed rows, …) of the module with most inside: scores, FFN, experts."""
    plain = layer_bytes.unrecomputed(local)
    inside = [0]
    if "core_attn" in local.recompute_modules and local.attention == "unfused":
        inside.append(layer_bytes.whole_scores(local))
    if "mlp" in local.recompute_modules and local.dense_layers:
        inside.append(layer_bytes.dense(plain))
    experts = "moe" in local.recompute_modules and local.moe_layers > 0
    if experts:
        inside.append(layer_bytes.router(plain) + layer_bytes.shared(plain))
    return Size(tokens=max(inside), rows=layer_bytes.routed(plain) if experts else 0)


@term(
    "layer.gradients",
    what="gradients of the stream in the layer at hand, and the stream gathered over tp",
    source=SOURCE,
)
def gradients(local: Local) -> Size:
    """(tokens, hidden) twice; where tp divides the sequence, whole once more and its gradient."""
    gathered = 2 * local.hidden * local.itemsize if local.sp > 1 else 0
    return Size(tokens=2 * local.streamed(local.hidden) + gathered)


@term(
    "layer.feed_forward",
    what="gradients inside the feed-forward part of the layer at hand",
    source=SOURCE,
)
def feed_forward(local: Local) -> Size:
    """Gradients of FC1's output and FC2's input; of routed rows also those of input and output."""
    ins = 2 if local.gated_mlp else 1
    if not local.moe_layers:
        return Size(tokens=(ins + 1) * local.dense_hidden * local.itemsize)
    elements = 2 * local.hidden + (ins + 1) * local.expert_hidden
    return Size(rows=local.routed(elements * local.itemsize))


@term(
    "layer.adapter_sums",
    what="output of the experts' FC2 once more, where an adapter's is added to the base's",
    when=lambda local: local.moe_layers > 0 and local.lora_rank > 0,
    source="seed 000: base, adapter and sum stand side by side; layer.feed_forward has two of them",
)
def adapter_sums(local: Local) -> Size:
    """(routed rows, hidden) in the activation dtype."""
    return Size(rows=local.routed(local.hidden * local.itemsize))


@term(
    "layer.scores",
    what="gradients of unfused attention's scores and probabilities in the layer at hand",
    when=lambda local: local.attention == "unfused" and local.attention_layers > 0,
    source=SOURCE,
)
def scores(local: Local) -> Size:
    """(tokens, heads, sequence) in the activation dtype."""
    return Size(tokens=local.num_heads * local.sequence * local.itemsize)


@term(
    "layer.gathered_tokens",
    what="what experts give for the tokens of all ranks, where the dispatcher gathers them",
    when=lambda local: local.dispatcher == "allgather" and local.ep > 1 and local.moe_layers > 0,
    source="derivation: Megatron-core's all-gather dispatcher scatters it from the whole again",
)
def gathered_tokens(local: Local) -> Size:
    """(tokens x ep, hidden) in the activation dtype."""
    return Size(tokens=local.ep * local.streamed(local.hidden))


@term(
    "layer.exchange",
    what="keys and values on their way between context-parallel ranks",
    when=lambda local: local.cp > 1 and local.attention_layers > 0,
    source="derivation: a ring of two buffers of keys and values, and of their gradients",
)
def exchange(local: Local) -> Size:
    """(tokens, 2 x key width) twice, in the activation dtype."""
    width = 2 * local.kv_width
    if local.latent_attention is not None:
        sizes = local.latent_attention
        width = local.num_heads * (sizes.nope_dim + sizes.rope_dim + sizes.value_dim)
    return Size(tokens=2 * width * local.itemsize)
