"""Parameters: how many there are in each part of a model, total and active, exact.

Counts follow the published implementations: an input and an output matrix for every projection,
one weight per channel of a norm, convolution and decay parameters of a Gated DeltaNet.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.model import Model


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterCount:
    """Parameters of a whole model.

    Parameters
    ----------
    total
        All of them, multi-token-prediction layers left out, as model cards count.
    active
        Those that one token meets: the chosen experts in place of all. The embedding counts.
    mtp
        Those of the multi-token-prediction layers.
    """

    total: int
    active: int
    mtp: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerParameters:
    """Parameters of one layer, by how parallelism treats them.

    Parameters
    ----------
    split
        Matrices that tensor parallelism divides evenly.
    kv
        Key and value projections: divided as long as there are heads, then copied.
    copied
        Norms, router, latent down-projections and biases of outputs: whole on every rank.
    expert
        One routed expert's matrices, which expert tensor parallelism divides.
    expert_copied
        One routed expert's output bias.
    experts
        Routed experts.
    """

    split: int
    kv: int
    copied: int
    expert: int = 0
    expert_copied: int = 0
    experts: int = 0

    @property
    def total(self) -> int:
        """All parameters of the layer."""
        return self.active(self.experts)

    def active(self, chosen: int) -> int:
        """Parameters that a token meets when ``chosen`` experts work on it."""
        return self.split + self.kv + self.copied + chosen * (self.expert + self.expert_copied)


def mixer(model: "Model", *, linear: bool) -> LayerParameters:
    """Return the parameters of a layer's mixer."""
    if linear and model.linear_attention is not None:
        return _linear(model)
    if model.latent_attention is not None:
        return _latent(model)
    queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    in_queries = queries * (2 if model.gated_attention else 1)
    return LayerParameters(
        split=model.hidden * (in_queries + queries)
        + (in_queries if model.qkv_bias else 0)
        + (model.num_heads if model.attention_sinks else 0),
        kv=2 * keys * (model.hidden + (1 if model.qkv_bias else 0)),
        copied=(2 * model.head_dim if model.qk_norm else 0)
        + (model.hidden if model.output_bias else 0),
    )


def _linear(model: "Model") -> LayerParameters:
    sizes = model.linear_attention
    assert sizes is not None  # the caller asked for it
    key, value = sizes.key_heads * sizes.key_dim, sizes.value_heads * sizes.value_dim
    projections = (
        model.hidden * (2 * key + 2 * value + 2 * sizes.value_heads) + value * model.hidden
    )
    convolution = (2 * key + value) * sizes.conv_width
    decay = 2 * sizes.value_heads
    return LayerParameters(split=projections + convolution + decay, kv=0, copied=sizes.value_dim)


def _latent(model: "Model") -> LayerParameters:
    sizes = model.latent_attention
    assert sizes is not None  # the caller asked for it
    head = sizes.nope_dim + sizes.rope_dim
    keys = model.num_heads * (sizes.nope_dim + sizes.value_dim)
    down = model.hidden * (sizes.kv_rank + sizes.rope_dim) + sizes.kv_rank
    if sizes.query_rank:
        down += model.hidden * sizes.query_rank + sizes.query_rank
        up = sizes.query_rank * model.num_heads * head
    else:
        up = model.hidden * model.num_heads * head
    out = model.num_heads * sizes.value_dim * model.hidden
    return LayerParameters(split=up + sizes.kv_rank * keys + out, kv=0, copied=down)


def feed_forward(model: "Model", *, moe: bool) -> LayerParameters:
    """Return the parameters of a layer's feed-forward part."""
    ins = 2 if model.gated_mlp else 1
    if not moe:
        width = model.dense_hidden
        return LayerParameters(
            split=(ins + 1) * model.hidden * width + (ins * width if model.mlp_bias else 0),
            kv=0,
            copied=model.hidden if model.mlp_bias else 0,
        )
    shared, width = model.shared_expert_hidden, model.expert_hidden
    router = model.num_experts * (model.hidden + (1 if model.router_bias else 0))
    return LayerParameters(
        split=(ins + 1) * model.hidden * shared,
        kv=0,
        copied=router + (model.hidden if model.shared_expert_gate else 0),
        expert=(ins + 1) * model.hidden * width + (ins * width if model.expert_bias else 0),
        expert_copied=model.hidden if model.expert_bias else 0,
        experts=model.num_experts,
    )


def norm(model: "Model") -> int:
    """Return the parameters of one norm of the stream."""
    return model.hidden * (2 if model.norm_bias else 1)


def layer(model: "Model", *, linear: bool, moe: bool) -> LayerParameters:
    """Return the parameters of one layer of these kinds."""
    mix, feed = mixer(model, linear=linear), feed_forward(model, moe=moe)
    return LayerParameters(
        split=mix.split + feed.split,
        kv=mix.kv,
        copied=mix.copied + feed.copied + model.norms_per_layer * norm(model),
        expert=feed.expert,
        expert_copied=feed.expert_copied,
        experts=feed.experts,
    )


def mtp_layer(model: "Model") -> LayerParameters:
    """Return the parameters of one multi-token-prediction layer.

    A full layer with attention (and experts where the model has any), a projection of two streams
    into one, and three norms. Its embedding and head are the model's own.
    """
    own = layer(model, linear=False, moe=model.is_moe)
    return LayerParameters(
        split=own.split + 2 * model.hidden * model.hidden,
        kv=own.kv,
        copied=own.copied + 3 * norm(model),
        expert=own.expert,
        expert_copied=own.expert_copied,
        experts=own.experts,
    )


def count_model(model: "Model") -> ParameterCount:
    """Count the whole model."""
    linear, moe = frozenset(model.linear_attention_layers), frozenset(model.moe_layers)
    layers = [
        layer(model, linear=index in linear, moe=index in moe) for index in range(model.num_layers)
    ]
    tables = 1 if model.tied_embeddings else 2
    outside = (
        tables * model.vocab * model.hidden + model.position_embeddings * model.hidden + norm(model)
    )
    return ParameterCount(
        total=outside + sum(each.total for each in layers),
        active=outside + sum(each.active(model.top_k if each.experts else 0) for each in layers),
        mtp=model.mtp_layers * mtp_layer(model).total,
    )
