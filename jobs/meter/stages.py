"""The planner's moments in a followed call: where each is, and what is live there, by term."""

import re
from dataclasses import dataclass, replace

from jobs.meter.allocation import Allocation
from jobs.meter.attribution import Attribution, Hand, attribute
from jobs.meter.call import CallLedger
from jobs.meter.rules import rules, symbols
from planner.model import Model
from planner.moments import Moment
from planner.step import Step
from planner.topology import Topology

LAYER = r"decoder\.layers\.\d+\."
SHARED = LAYER + r"mlp\.shared_experts.*"
ANY = ".*"
COMBINED = r"add\.Tensor|peakcast\.unpermute"
"""Makes the tokens that come back: summed with the shared expert's, or unpermuted without one."""

PLACES = (
    (Moment.FORWARD_MIXER, "forward", LAYER + r"self_attention.*", ANY),
    (Moment.FORWARD_SHARED, "forward", SHARED, ANY),
    (Moment.FORWARD_FC1, "forward", LAYER + r"mlp\.experts\.fc1", ANY),
    (Moment.FORWARD_FC2, "forward", LAYER + r"mlp\.experts\.fc2", ANY),
    (Moment.FORWARD_COMBINE, "forward", LAYER + r"mlp", COMBINED),
    (Moment.FORWARD_HEAD, "forward", "head", ANY),
    (Moment.BACKWARD_HEAD, "backward", "head", ANY),
    (Moment.RECOMPUTE_SHARED, "recompute", SHARED, ANY),
    (Moment.RECOMPUTE_FC1, "recompute", LAYER + r"mlp\.experts\.fc1", ANY),
    (Moment.RECOMPUTE_FC2, "recompute", LAYER + r"mlp\.experts\.fc2", ANY),
    (Moment.RECOMPUTE_COMBINE, "recompute", LAYER + r"mlp", COMBINED),
    (Moment.BACKWARD_SHARED, "backward", SHARED, ANY),
    (Moment.BACKWARD_ROUTER, "backward", LAYER + r"mlp\.router", ANY),
    (Moment.BACKWARD_MIXER, "backward", LAYER + r"self_attention.*", ANY),
)
"""Phase, module and operator of the allocations that a moment spans."""

BELOW_ALL = -2
"""Stands for the layer at hand once the call is over: every layer is passed, none receives."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A moment at its fullest: the layer at hand (the number of layers: none), and live terms."""

    layer: int
    attribution: Attribution


def stages(
    call: CallLedger, model: Model, step: Step, tokens: int, topology: Topology
) -> dict[Moment, Stage]:
    """Return each moment that the call passed, at its fullest, with what was live by term.

    Parameters
    ----------
    tokens
        Local tokens of the call, which must have one child only.
    topology
        The ranks that the call ran on, as of `jobs.meter.rules.attribute_peak`.
    """
    sizes = symbols(model, step, [tokens], topology.cp)
    known, layers = rules(step, topology), model.num_layers

    def stage(live: tuple[Allocation, ...], hand: Hand, layer: int) -> Stage:
        return Stage(layer, attribute(live, known, sizes, hand))

    found: dict[Moment, Stage] = {}
    for moment, allocation in _fullest(call).items():
        hand = Hand.of(allocation.phase, allocation.module, layers)
        found[moment] = stage(call.live_at(allocation.number), hand, hand.layer)
    if call.retained_number is not None:
        head = Hand("head", layers - 1)
        found[Moment.RETAINED] = stage(call.live_at(call.retained_number), head, head.layer)
    found[Moment.BETWEEN_CALLS] = stage(_left(call), Hand("backward", BELOW_ALL), layers)
    return {moment: found[moment] for moment in Moment if moment in found}


def _left(call: CallLedger) -> tuple[Allocation, ...]:
    """Return what outlives the call and its gradients; layer 0's input is pinned like the rest."""
    left = [a for a in call.live_at(call.last_number) if not a.gradient_of]
    return tuple(
        replace(a, module="decoder.layers.0", op="add.Tensor") if a.module == "embedding" else a
        for a in left
    )


def _fullest(call: CallLedger) -> dict[Moment, Allocation]:
    """Return, of each moment's allocations, the one after which most was live."""
    places = [(moment, phase, re.compile(m), re.compile(op)) for moment, phase, m, op in PLACES]
    highest: dict[Moment, int] = {}
    fullest: dict[Moment, Allocation] = {}
    for allocation, live in call.live_bytes():
        for moment, phase, module, op in places:
            if (
                allocation.phase == phase
                and live > highest.get(moment, 0)
                and module.fullmatch(allocation.module)
                and op.fullmatch(allocation.op)
            ):
                highest[moment], fullest[moment] = live, allocation
    return fullest
