"""Rules: which planner term each storage of the model under test belongs to.

They read in order; the first that matches decides. Written against the real model (all-to-all at
EP1, HybridEP and all-to-all above, CP, full recompute and none, adapters and none).
"""

from collections.abc import Iterable

from jobs.meter import adapter_rules, gdn_rules, moe_rules, stream_rules, te_rules
from jobs.meter.attribution import Attribution, Hand, Rule, attribute
from jobs.meter.call import CallLedger
from planner.model import Model
from planner.step import Step
from planner.terms.linear_attention import CHUNK
from planner.topology import Topology


def rules(step: Step, topology: Topology) -> tuple[Rule, ...]:
    """Return the rules of a model that runs so."""
    return (
        *adapter_rules.ADAPTERS,
        *moe_rules.GRADIENTS,
        *stream_rules.RESIDUAL,
        *stream_rules.HEAD,
        *gdn_rules.GDN,
        *(stream_rules.ATTENTION_FORWARD if step.recompute == "full" else ()),
        *(te_rules.attention(topology.cp) if step.engine == "te" else ()),
        *stream_rules.ATTENTION,
        *moe_rules.ROUTER,
        *moe_rules.dispatch(step.dispatcher_at(topology), topology.ep),
        *moe_rules.ROUTED,
        *moe_rules.SHARED,
    )


def attribute_peak(
    call: CallLedger, model: Model, step: Step, tokens: Iterable[int], topology: Topology
) -> Attribution:
    """Give every storage at the call's working-set peak to a planner term.

    Parameters
    ----------
    tokens
        Local tokens of each child of the call. Where a layer's routed rows happen to equal them,
        its (R, H) tensors in the dispatcher read as (T, H).
    topology
        Says which dispatcher runs; linear attention divides its heads over cp.
    """
    at = call.peak_at
    hand = Hand.of(at["phase"], at["module"], model.num_layers)
    return attribute(
        call.at_peak, rules(step, topology), symbols(model, step, tokens, topology.cp), hand
    )


def symbols(model: Model, step: Step, tokens: Iterable[int], cp: int) -> dict[str, frozenset[int]]:
    """Return the sizes that the rules' names stand for; see `attribute_peak`."""
    sizes = {
        "H": model.hidden,
        "E": model.num_experts,
        "k": model.top_k,
        "V": model.vocab,
        "D": model.head_dim,
        "turned": model.turned_channels,
        "Q": model.num_heads * model.head_dim,
        "heads": model.num_heads,
        "kv_heads": model.num_kv_heads,
        "r": step.lora_rank,
    }
    sizes |= _mixer_sizes(model, cp)
    turned = model.turned_channels
    parts = (turned, turned // 2, model.head_dim - turned)
    several = {"T": frozenset(tokens), "part": frozenset(parts)}
    return several | {name: frozenset((size,)) for name, size in sizes.items()}


def _mixer_sizes(model: Model, cp: int) -> dict[str, int]:
    """Sizes of linear attention on one rank; 0, which is no tensor's, where there is none."""
    mixer = model.linear_attention
    if mixer is None:
        names = ("dk", "dv", "chunk", "taps", "repeats", "keys", "values", "mixed", "projected")
        return dict.fromkeys((*names, "all values"), 0)
    heads = mixer.value_heads // cp
    keys, values = mixer.key_heads * mixer.key_dim // cp, heads * mixer.value_dim
    return {
        "dk": mixer.key_dim,
        "dv": mixer.value_dim,
        "chunk": CHUNK,
        "taps": mixer.conv_width,
        "repeats": mixer.value_heads // mixer.key_heads,
        "keys": keys,
        "values": values,
        "all values": mixer.value_heads * mixer.value_dim,
        "mixed": 2 * keys + values,
        "projected": 2 * (keys + values + heads),
    }
