"""TERMS: every priced term, in the order of the explain table; a declared term is listed here."""

from planner.term import Term
from planner.terms import experts, head, residual, shared

TERMS: tuple[Term, ...] = (
    residual.boundaries,
    residual.input_gradients,
    residual.stream,
    residual.floor,
    experts.dispatched_inputs,
    experts.probabilities,
    experts.fc1_outputs,
    experts.fc2_inputs,
    experts.fc2_outputs,
    experts.adapter_intermediates,
    shared.shared_return,
    shared.shared_fc1_outputs,
    shared.shared_activation,
    head.logits,
    head.indices,
    head.outputs,
)
