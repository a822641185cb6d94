"""Adapters: gradients of the LoRA matrices, made as backward passes each layer; intermediates."""

from planner.local import Local
from planner.size import Size
from planner.term import term
from planner.terms.shared import exists as shared_expert


@term(
    "adapters.gradients",
    what="gradients of the adapters of layers whose backward is over",
    when=lambda local: local.lora_rank > 0 and local.moe_layers > 0,
    source="derivation: (in, r) and (r, out) of FC1 and FC2 of each local expert; where adapters "
    "lie on all projections, of those too",
)
def gradients(local: Local) -> Size:
    """(local experts, r, 2H + 3F) in the activation dtype, a layer, and dense ones (the mean)."""
    return Size(graded=_layer_bytes(local))


@term(
    "adapters.layer_gradients",
    what="gradients of the adapters of the layer at hand",
    when=lambda local: local.lora_rank > 0 and local.moe_layers > 0,
    source="derivation: as adapters.gradients, once the experts' backward is over",
)
def layer_gradients(local: Local) -> Size:
    """(local experts, r, 2H + 3F) in the activation dtype; dense ones are made later."""
    return Size(call=_expert_bytes(local))


@term(
    "adapters.mixer_intermediates",
    what="tokens between the two matrices of an adapter on one of the mixer's projections",
    when=lambda local: local.dense_adapters,
    source="derivation: each adapter saves (tokens, r) for the gradient of its second matrix",
)
def mixer_intermediates(local: Local) -> Size:
    """(tokens, r) in the activation dtype."""
    return Size(tokens=local.lora_rank * local.itemsize)


@term(
    "adapters.shared_intermediates",
    what="tokens between the two matrices of an adapter on one of the shared expert's projections",
    when=lambda local: local.dense_adapters and shared_expert(local),
    source="derivation: as adapters.mixer_intermediates",
)
def shared_intermediates(local: Local) -> Size:
    """(tokens, r) in the activation dtype."""
    return Size(tokens=local.lora_rank * local.itemsize)


def _expert_bytes(local: Local) -> int:
    elements = local.local_experts * local.lora_rank * (2 * local.hidden + 3 * local.expert_hidden)
    return elements * local.itemsize


def _layer_bytes(local: Local) -> int:
    dense = local.lora_rank * local.dense_adapter_width if local.dense_adapters else 0
    return _expert_bytes(local) + dense * local.itemsize
