"""Local: what one rank holds. The only module that divides by a degree of parallelism."""

from dataclasses import dataclass

from planner.dense_adapters import layer_width
from planner.errors import ConfigError
from planner.kept import Kept, kept_of
from planner.mixers import LatentAttention, LinearAttention
from planner.model import Model
from planner.stages import stage_of
from planner.step import Step
from planner.topology import Topology
from planner.units import align_up, ceil_div

WHOLE = 2**40
"""Tokens of a head chunk that holds all of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Local:
    """Widths and counts on one rank, in elements unless the name says otherwise.

    ``linear_layers`` are the places, among this rank's layers, of those with linear attention;
    ``sp`` is the degree that divides the stream along the sequence: tp, or 1; ``received`` counts
    the virtual stages that another pipeline rank sends their input.
    ``dense_adapter_width`` is inputs and outputs of a layer's dense adapters, the mean over this
    rank's layers; 0 where there are none. ``gradients``: whether the call has a backward.
    """

    layers: int
    hidden: int
    vocab: int
    query_width: int
    kv_width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    gated_attention: bool
    num_experts: int
    local_experts: int
    top_k: int
    expert_hidden: int
    shared_hidden: int
    shared_gate: bool
    linear_attention: LinearAttention | None
    itemsize: int
    lora_rank: int
    dense_adapter_width: int
    head_chunk: int
    fused_head: bool
    recompute: str
    dispatcher: str
    group_ranks: int
    tp: int
    pp: int
    cp: int
    ep: int
    etp: int
    sp: int
    kept: Kept
    first: bool
    last: bool
    received: int
    dense_layers: int
    moe_layers: int
    attention_layers: int
    linear_layers: frozenset[int]
    dense_hidden: int
    gated_mlp: bool
    latent_attention: LatentAttention | None
    qk_norm: bool
    rotary: bool
    rotary_channels: int
    mtp_layers: int
    attention: str
    sequence: int
    dropout: bool
    recompute_modules: tuple[str, ...]
    capacity_factor: float | None
    trained: bool
    release_dispatcher_state: bool
    compile_garbage: bool
    fused_activation: bool
    whole_kv_width: int
    domains: int
    on_device: bool
    offload_activations: bool
    fp8: bool
    engine: str
    gradients: bool

    @property
    def dense_adapters(self) -> bool:
        """Whether projections beside those of routed experts have adapters."""
        return self.dense_adapter_width > 0 and self.lora_rank > 0

    @property
    def whole_head(self) -> bool:
        """Whether the head makes the logits of all tokens at once."""
        return self.head_chunk == WHOLE

    def passed(self, size: int) -> int:
        """Bytes that a dispatcher keeps of a layer that is over, of ``size`` at its forward.

        It lets go as the layer's backward ends: never in a call without one.
        """
        return 0 if self.release_dispatcher_state and self.gradients else size

    def over_tp(self, width: int) -> int:
        """Return this rank's share of a width that tp divides, rounded up."""
        return ceil_div(width, self.tp)

    def over_sp(self, width: int) -> int:
        """Return this rank's share of a width that sequence parallelism divides, rounded up."""
        return ceil_div(width, self.sp)

    def streamed(self, elements: int) -> int:
        """Bytes of a stream-wide tensor of ``elements`` a token on this rank."""
        return ceil_div(elements * self.itemsize, self.sp)

    def routed(self, size: int) -> int:
        """Bytes on this rank for ``size`` bytes of each (token, expert) pair."""
        factor = 1.0 if self.capacity_factor is None else self.capacity_factor
        share = ceil_div(size * self.etp, self.sp)
        return share if factor == 1 else ceil_div(share * round(factor * 1000), 1000)


def localize(model: Model, topology: Topology, step: Step, pp_rank: int = 0) -> Local:
    """Divide a model over a topology, for the ranks of one pipeline stage.

    Raises
    ------
    ConfigError
        When a degree does not divide what it splits, naming both and the degrees that do.
    """
    _require_divisors(model, topology)
    stage = stage_of(model.num_layers, topology, pp_rank, step.microbatches)
    kept = kept_of(model, stage, step)
    sp = topology.tp if step.sequence_parallel else 1
    vocab = align_up(model.vocab, step.vocab_multiple * topology.tp)
    return Local(
        layers=len(stage.layers),
        hidden=model.hidden,
        vocab=vocab // topology.tp,
        query_width=model.num_heads * model.head_dim // topology.tp,
        kv_width=max(1, model.num_kv_heads // topology.tp) * model.head_dim,
        num_heads=model.num_heads // topology.tp,
        num_kv_heads=max(1, model.num_kv_heads // topology.tp),
        head_dim=model.head_dim,
        gated_attention=model.gated_attention,
        num_experts=model.num_experts,
        local_experts=model.num_experts // topology.ep,
        top_k=model.top_k,
        expert_hidden=model.expert_hidden // topology.etp,
        shared_hidden=model.shared_expert_hidden // topology.tp,
        shared_gate=model.shared_expert_gate,
        linear_attention=model.linear_attention if kept.linear_here else None,
        itemsize=step.itemsize,
        lora_rank=step.lora_rank,
        dense_adapter_width=_mean_adapter_width(model, topology, stage.layers)
        if step.adapters == "all" and step.lora_rank
        else 0,
        head_chunk=step.head_chunk if step.head == "chunked" else WHOLE,
        fused_head=step.head == "fused",
        recompute=step.recompute,
        dispatcher=step.dispatcher_at(topology),
        group_ranks=topology.ep * topology.etp,
        tp=topology.tp,
        pp=topology.pp,
        cp=topology.cp,
        ep=topology.ep,
        etp=topology.etp,
        sp=sp,
        kept=kept,
        first=stage.first,
        last=stage.last,
        received=len(stage.chunks) - stage.first,
        dense_layers=kept.dense_here,
        moe_layers=kept.moe_here,
        attention_layers=kept.attention_here,
        linear_layers=kept.linear_places,
        dense_hidden=model.dense_hidden // topology.tp,
        gated_mlp=model.gated_mlp,
        latent_attention=model.latent_attention,
        qk_norm=model.qk_norm,
        rotary=model.position_embeddings == 0,
        rotary_channels=model.turned_channels,
        mtp_layers=model.mtp_layers if stage.last else 0,
        attention=step.attention,
        sequence=step.sequence,
        dropout=step.dropout,
        recompute_modules=step.recompute_modules,
        capacity_factor=step.capacity_factor,
        trained=step.lora_rank == 0,
        release_dispatcher_state=step.release_dispatcher_state,
        compile_garbage=step.compiled and not step.collect_compile_garbage,
        fused_activation=step.fused_activation,
        whole_kv_width=model.num_kv_heads * model.head_dim,
        domains=ceil_div(topology.ep * topology.etp, step.nvlink_ranks),
        on_device=step.device == "cuda",
        offload_activations=step.offload_activations,
        fp8=step.fp8,
        engine=step.engine,
        gradients=True,
    )


def _mean_adapter_width(model: Model, topology: Topology, layers: tuple[int, ...]) -> int:
    linear, moe = model.linear_attention_layers, model.moe_layers
    widths = [
        layer_width(model, topology.tp, linear=index in linear, moe=index in moe)
        for index in layers
    ]
    return ceil_div(sum(widths), max(1, len(widths)))  # a stage may hold no layer


def _require_divisors(model: Model, topology: Topology) -> None:
    for axis, degree, what, count in (
        ("ep", topology.ep, "num_experts", model.num_experts),
        ("tp", topology.tp, "num_heads", model.num_heads),
        ("etp", topology.etp, "expert_hidden", model.expert_hidden),
        ("tp", topology.tp, "dense_hidden", model.dense_hidden),
    ):
        if count % degree:
            divisors = ", ".join(str(d) for d in range(1, count + 1) if count % d == 0)
            raise ConfigError(
                f"{axis} = {degree} does not divide {what} = {count} of {model.name}; "
                f"{axis} can be {divisors}"
            )
    _require_key_heads(model, topology)
    if topology.ep * topology.etp > 1 and not model.is_moe:
        raise ConfigError(
            f"ep·etp = {topology.ep}·{topology.etp} but {model.name} has no experts; "
            "use ep=1 and etp=1"
        )


def _require_key_heads(model: Model, topology: Topology) -> None:
    """Check that linear attention can split its heads, over tp and then over cp."""
    mixer = model.linear_attention
    if mixer is None or not model.num_linear_attention_layers:
        return
    heads, tp, cp = mixer.key_heads, topology.tp, topology.cp
    if heads % (tp * cp):
        fits = [str(degree) for degree in range(1, heads + 1) if heads % (tp * degree) == 0]
        over = f"cp = {cp}" if tp == 1 else f"tp·cp = {tp}·{cp}"
        raise ConfigError(
            f"{over} does not divide the {heads} key heads of the Gated DeltaNet layers of "
            f"{model.name}, which split their heads over tp and cp; "
            + (f"cp can be {', '.join(fits)}" if fits else f"tp must divide {heads}")
        )
