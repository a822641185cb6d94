"""Adapters: gradients of the experts' LoRA matrices, made as backward passes each layer."""

from planner.local import Local
from planner.size import Size
from planner.term import term


@term(
    "adapters.gradients",
    what="gradients of the adapters of layers whose backward is over",
    when=lambda local: local.lora_rank > 0 and local.moe_layers > 0,
    source="derivation: FC1 (H, r) and (r, 2F), FC2 (F, r) and (r, H), for each local expert",
)
def gradients(local: Local) -> Size:
    """(local experts, r, 2H + 3F) in the activation dtype, a layer."""
    return Size(graded=_layer_bytes(local))


@term(
    "adapters.layer_gradients",
    what="gradients of the adapters of the layer at hand",
    when=lambda local: local.lora_rank > 0 and local.moe_layers > 0,
    source="derivation: as adapters.gradients, once the experts' backward is over",
)
def layer_gradients(local: Local) -> Size:
    """(local experts, r, 2H + 3F) in the activation dtype."""
    return Size(call=_layer_bytes(local))


def _layer_bytes(local: Local) -> int:
    elements = local.local_experts * local.lora_rank * (2 * local.hidden + 3 * local.expert_hidden)
    return elements * local.itemsize
