"""SwiGLU, plain and weighted by routing probabilities, each as one operator."""

import torch
from torch import Tensor
from torch.nn.functional import silu


def _halve(shape: torch.Size) -> list[int]:
    return [*shape[:-1], shape[-1] // 2]


def _silu_gradient(gate: Tensor, sigmoid: Tensor) -> Tensor:
    return sigmoid * (1 + gate * (1 - sigmoid))


@torch.library.custom_op("peakcast::swiglu", mutates_args=())
def swiglu(h: Tensor) -> Tensor:
    """Return ``silu(gate) * up`` of ``h = [gate | up]``, (…, 2F) to (…, F).

    Backward keeps ``h``, as Megatron's fused ``SwiGLUFunction`` does.
    """
    gate, up = h.float().chunk(2, -1)
    return (silu(gate) * up).to(h.dtype)


@swiglu.register_fake
def _(h: Tensor) -> Tensor:
    return h.new_empty(_halve(h.shape))


@torch.library.custom_op("peakcast::swiglu_backward", mutates_args=())
def swiglu_backward(grad: Tensor, h: Tensor) -> Tensor:
    """Return the gradient of ``h``."""
    gate, up = h.float().chunk(2, -1)
    sigmoid = torch.sigmoid(gate)
    wide = grad.float()
    parts = (wide * up * _silu_gradient(gate, sigmoid), wide * gate * sigmoid)
    return torch.cat(parts, -1).to(h.dtype)


@swiglu_backward.register_fake
def _(grad: Tensor, h: Tensor) -> Tensor:  # noqa: ARG001
    return h.new_empty(h.shape)


def _save(ctx, inputs, output) -> None:  # noqa: ARG001
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs)


swiglu.register_autograd(
    lambda ctx, grad: None if grad is None else swiglu_backward(grad, *ctx.saved_tensors),
    setup_context=_save,
)


@torch.library.custom_op("peakcast::weighted_swiglu", mutates_args=())
def weighted_swiglu(h: Tensor, probs: Tensor) -> Tensor:
    """Return ``silu(gate) * up * probs`` of routed rows, (R, 2F) and (R,) to (R, F).

    Backward keeps ``h`` and ``probs``, as Megatron's fused ``WeightedSwiGLUFunction`` does.
    """
    gate, up = h.float().chunk(2, -1)
    return (silu(gate) * up * probs.unsqueeze(-1)).to(h.dtype)


@weighted_swiglu.register_fake
def _(h: Tensor, probs: Tensor) -> Tensor:  # noqa: ARG001
    return h.new_empty(_halve(h.shape))


@torch.library.custom_op("peakcast::weighted_swiglu_backward", mutates_args=())
def weighted_swiglu_backward(grad: Tensor, h: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of ``h`` and ``probs``."""
    gate, up = h.float().chunk(2, -1)
    sigmoid = torch.sigmoid(gate)
    wide = grad.float()
    grad_probs = (wide * gate * sigmoid * up).sum(-1).to(probs.dtype)
    wide = wide * probs.unsqueeze(-1)
    parts = (wide * up * _silu_gradient(gate, sigmoid), wide * gate * sigmoid)
    return torch.cat(parts, -1).to(h.dtype), grad_probs


@weighted_swiglu_backward.register_fake
def _(grad: Tensor, h: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    return h.new_empty(h.shape), torch.empty_like(probs)


weighted_swiglu.register_autograd(
    lambda ctx, grad: (
        (None, None) if grad is None else weighted_swiglu_backward(grad, *ctx.saved_tensors)
    ),
    setup_context=_save,
)
