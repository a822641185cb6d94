"""Let each layer's dispatcher go of what it keeps, once the layer's backward is over.

Megatron's dispatchers hold the probabilities of their last call, whose ``grad_fn`` reaches the
recomputed graph: it pins the layer's input, its gradient and, with HybridEP, the handle, until the
dispatcher runs again. Nothing of it is read after the layer's backward.
"""

from typing import Any

import torch
from torch import Tensor

STATE = (
    "probs",
    "token_probs",
    "dispatched_probs",
    "routing_map",
    "reversed_local_input_permutation_mapping",
    "handle",
    "tokens_per_expert",
    "num_global_tokens_per_local_expert",
)
"""Attributes of a dispatcher and of its communication manager that hold tensors of a call."""


def release_after_backward(layers: torch.nn.ModuleList) -> None:
    """Clear each layer's dispatcher when the gradient of the layer's input has been made."""
    for layer in layers:
        layer.register_forward_pre_hook(_watch_input, with_kwargs=True)


def _watch_input(layer: torch.nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
    hidden: Tensor = kwargs["hidden_states"]
    # Run again under backward, the layer sees a detached copy, whose gradient comes too early: the
    # checkpoint around it has not returned then.
    if hidden.requires_grad and torch._C._current_autograd_node() is None:
        dispatcher = layer.mlp.token_dispatcher
        hidden.register_hook(lambda _gradient: _release(dispatcher))


def _release(dispatcher: Any) -> None:
    for holder in (dispatcher, getattr(dispatcher, "_comm_manager", None)):
        for name in STATE:
            if getattr(holder, name, None) is not None:
                setattr(holder, name, None)
