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
    """A place in the step, named by phase and stage."""

    FORWARD_FLOOR = "forward_floor"
    """No stage of its own: a lower estimate that stands beside the others."""
    FORWARD_FC1 = "forward_fc1"
    """The routed experts' first projection and its adapter sum, in forward."""
    FORWARD_FC2 = "forward_fc2"
    """The routed experts' second projection and its adapter sum, in forward."""
    FORWARD_HEAD = "forward_head"
    """A chunk of the log-probability head, in forward."""
    RETAINED = "retained"
    """Forward has returned; nothing of backward has begun."""
    BACKWARD_HEAD = "backward_head"
    """A chunk of the head, in backward."""
    RECOMPUTE_FC1 = "recompute_fc1"
    """A layer recomputed in backward, at the adapter sum of FC1."""
    RECOMPUTE_FC2 = "recompute_fc2"
    """A layer recomputed in backward, at the adapter sum of FC2."""
    BACKWARD_MIXER = "backward_mixer"
    """A layer's backward, at the gradients of attention."""
    BETWEEN_CALLS = "between_calls"
    """The call has ended; what is left belongs to the dispatchers."""

    @property
    def phase(self) -> Phase:
        """The part of the call in which the moment lies."""
        if self is Moment.RETAINED:
            return Phase.RETAINED
        if self is Moment.BETWEEN_CALLS:
            return Phase.BETWEEN
        return Phase.FORWARD if self.value.startswith("forward") else Phase.BACKWARD
