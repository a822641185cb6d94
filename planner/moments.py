"""The moments of a step at which bytes are counted; a peak is the fullest of them.

A moment is a place in the program, not a time: `FORWARD_FC2` happens once a layer. Moments never
coincide on one rank, so a price is a maximum over them. `RETAINED` and `BETWEEN_CALLS` are states,
not peaks: what forward leaves for backward, and what a call leaves for the next.
"""

from enum import StrEnum


class Phase(StrEnum):
    """The part of a call that a moment belongs to."""

    FORWARD = "forward"
    RETAINED = "retained"
    BACKWARD = "backward"
    BETWEEN = "between"


class Moment(StrEnum):
    """A place in the step, named by phase and stage; `where` says which."""

    FORWARD_FLOOR = "forward_floor"
    FORWARD_MIXER = "forward_mixer"
    FORWARD_SHARED = "forward_shared"
    FORWARD_FC1 = "forward_fc1"
    FORWARD_FC2 = "forward_fc2"
    FORWARD_COMBINE = "forward_combine"
    FORWARD_LAYER = "forward_layer"
    FORWARD_HEAD = "forward_head"
    RETAINED = "retained"
    BACKWARD_HEAD = "backward_head"
    RECOMPUTE_SHARED = "recompute_shared"
    RECOMPUTE_FC1 = "recompute_fc1"
    RECOMPUTE_FC2 = "recompute_fc2"
    RECOMPUTE_COMBINE = "recompute_combine"
    BACKWARD_SHARED = "backward_shared"
    BACKWARD_ROUTER = "backward_router"
    BACKWARD_MIXER = "backward_mixer"
    BACKWARD_LAYER = "backward_layer"
    BETWEEN_CALLS = "between_calls"

    __hash__ = str.__hash__  # as equal text has; Enum's own is a Python function, met in each price

    @property
    def phase(self) -> Phase:
        """The part of the call in which the moment lies."""
        if self is Moment.RETAINED:
            return Phase.RETAINED
        if self is Moment.BETWEEN_CALLS:
            return Phase.BETWEEN
        return Phase.FORWARD if self.value.startswith("forward") else Phase.BACKWARD

    @property
    def where(self) -> str:
        """The place in the program, in words."""
        return _WHERE[self]


_WHERE = {
    Moment.FORWARD_FLOOR: "no stage of its own: a lower estimate that stands beside the others",
    Moment.FORWARD_MIXER: "attention of a layer, in forward",
    Moment.FORWARD_SHARED: "a wide shared expert, in forward",
    Moment.FORWARD_FC1: "the routed experts' first projection and its adapter sum, in forward",
    Moment.FORWARD_FC2: "the routed experts' second projection and its adapter sum, in forward",
    Moment.FORWARD_COMBINE: "a layer's forward, where combined rows meet the stream",
    Moment.FORWARD_LAYER: "the last layer's forward, with every microbatch in flight kept",
    Moment.FORWARD_HEAD: "the log-probability head (a chunk of it), in forward",
    Moment.RETAINED: "forward has returned; nothing of backward has begun",
    Moment.BACKWARD_HEAD: "the head (a chunk of it), in backward",
    Moment.RECOMPUTE_SHARED: "a layer recomputed in backward, at its wide shared expert",
    Moment.RECOMPUTE_FC1: "a layer recomputed in backward, at the adapter sum of FC1",
    Moment.RECOMPUTE_FC2: "a layer recomputed in backward, at the adapter sum of FC2",
    Moment.RECOMPUTE_COMBINE: "a layer recomputed in backward, where combined rows meet the stream",
    Moment.BACKWARD_SHARED: "a layer's backward, at the gradients of its wide shared expert",
    Moment.BACKWARD_ROUTER: "a layer's backward, at the gradients of the router's gate",
    Moment.BACKWARD_MIXER: "a layer's backward, at the gradients of attention",
    Moment.BACKWARD_LAYER: "a layer's backward, with every microbatch in flight kept",
    Moment.BETWEEN_CALLS: "the call has ended; what is left belongs to the dispatchers",
}
