"""Local: what one rank holds. The only module that divides by a degree of parallelism."""

from dataclasses import dataclass

from planner.errors import ConfigError
from planner.mixers import LinearAttention
from planner.model import Model
from planner.step import Step
from planner.topology import Topology
from planner.units import ceil_div


@dataclass(frozen=True, kw_only=True, slots=True)
class Local:
    """Widths and counts on one rank, in elements unless the name says otherwise."""

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
    head_chunk: int
    recompute: str
    dispatcher: str
    group_ranks: int
    tp: int
    pp: int
    cp: int
    ep: int
    etp: int


def localize(model: Model, topology: Topology, step: Step) -> Local:
    """Divide a model over a topology.

    Raises
    ------
    ConfigError
        When a degree does not divide what it splits, naming both and the degrees that do.
    """
    for axis, degree, what, count in (
        ("ep", topology.ep, "num_experts", model.num_experts),
        ("tp", topology.tp, "num_heads", model.num_heads),
        ("etp", topology.etp, "expert_hidden", model.expert_hidden),
    ):
        if count % degree:
            divisors = ", ".join(str(d) for d in range(1, count + 1) if count % d == 0)
            raise ConfigError(
                f"{axis} = {degree} does not divide {what} = {count} of {model.name}; "
                f"{axis} can be {divisors}"
            )
    if topology.pp > model.num_layers:
        raise ConfigError(
            f"pp = {topology.pp} is more than the {model.num_layers} layers of {model.name}"
        )
    return Local(
        layers=ceil_div(model.num_layers, topology.pp),
        hidden=model.hidden,
        vocab=model.vocab // topology.tp,
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
        linear_attention=model.linear_attention if model.num_linear_attention_layers else None,
        itemsize=step.itemsize,
        lora_rank=step.lora_rank,
        head_chunk=step.head_chunk,
        recompute=step.recompute,
        dispatcher=step.dispatcher_at(topology),
        group_ranks=topology.ep * topology.etp,
        tp=topology.tp,
        pp=topology.pp,
        cp=topology.cp,
        ep=topology.ep,
        etp=topology.etp,
    )
