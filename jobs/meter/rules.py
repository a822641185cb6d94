"""RULES: which planner term each storage of the model under test belongs to.

They read in order; the first that matches decides. Written against the real model (all-to-all at
EP1, HybridEP and all-to-all above, CP, full recompute and none, adapters and none).
"""

from collections.abc import Iterable

from jobs.meter import moe_rules, stream_rules
from jobs.meter.attribution import Attribution, Hand, Rule, attribute
from jobs.meter.call import CallLedger
from planner.model import Model
from planner.step import Step

RULES: tuple[Rule, ...] = (
    *moe_rules.GRADIENTS,
    *stream_rules.RESIDUAL,
    *stream_rules.HEAD,
    *stream_rules.ATTENTION,
    *moe_rules.ROUTER,
    *moe_rules.DISPATCH,
    *moe_rules.ROUTED,
    *moe_rules.SHARED,
)


def attribute_peak(
    call: CallLedger, model: Model, step: Step, tokens: Iterable[int]
) -> Attribution:
    """Give every storage at the call's working-set peak to a planner term.

    Parameters
    ----------
    tokens
        Local tokens of each child of the call. Where a layer's routed rows happen to equal them,
        its (R, H) tensors in the dispatcher read as (T, H).
    """
    at = call.peak_at
    hand = Hand.of(at["phase"], at["module"], model.num_layers)
    return attribute(call.at_peak, RULES, symbols(model, step, tokens), hand)


def symbols(model: Model, step: Step, tokens: Iterable[int]) -> dict[str, frozenset[int]]:
    """Return the sizes that the rules' names stand for; ``tokens`` as in `attribute_peak`."""
    sizes = {
        "H": model.hidden,
        "E": model.num_experts,
        "k": model.top_k,
        "V": model.vocab,
        "D": model.head_dim,
        "D/2": model.head_dim // 2,
        "Q": model.num_heads * model.head_dim,
        "heads": model.num_heads,
        "kv_heads": model.num_kv_heads,
        "r": step.lora_rank,
    }
    return {"T": frozenset(tokens)} | {name: frozenset((size,)) for name, size in sizes.items()}
