"""SwiGLU, plain and weighted by routing probabilities, each as one operator."""

import torch
from torch import Tensor
from torch.nn.functional import silu

from jobs.model.kernels.row_blocks import row_blocks


def _halve(shape: torch.Size) -> list[int]:
    return [*shape[:-1], shape[-1] // 2]


def _silu_gradient(gate: Tensor, sigmoid: Tensor) -> Tensor:
    return sigmoid * (1 + gate * (1 - sigmoid))


def _flat(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def _forward(h: Tensor, probs: Tensor | None) -> Tensor:
    flat, out = _flat(h), h.new_empty(_halve(h.shape))
    into = _flat(out)
    for rows in row_blocks(*flat.shape):
        gate, up = flat[rows].float().chunk(2, -1)
        part = silu(gate) * up
        into[rows] = part if probs is None else part * probs[rows].unsqueeze(-1)
    return out


def _gradient(wide: Tensor, h: Tensor, out: Tensor) -> None:
    """Write the gradient of ``silu(gate) * up`` for ``wide``, rows of fp32."""
    gate, up = h.float().chunk(2, -1)
    sigmoid = torch.sigmoid(gate)
    to_gate, to_up = out.chunk(2, -1)
    to_gate.copy_(wide * up * _silu_gradient(gate, sigmoid))
    to_up.copy_(wide * gate * sigmoid)


@torch.library.custom_op("peakcast::swiglu", mutates_args=())
def swiglu(h: Tensor) -> Tensor:
    """Return ``silu(gate) * up`` of ``h = [gate | up]``, (…, 2F) to (…, F).

    Backward keeps ``h``, as Megatron's fused ``SwiGLUFunction`` does.
    """
    return _forward(h, None)


@swiglu.register_fake
def _(h: Tensor) -> Tensor:
    return h.new_empty(_halve(h.shape))


@torch.library.custom_op("peakcast::swiglu_backward", mutates_args=())
def swiglu_backward(grad: Tensor, h: Tensor) -> Tensor:
    """Return the gradient of ``h``."""
    flat, flat_grad, out = _flat(h), _flat(grad), h.new_empty(h.shape)
    for rows in row_blocks(*flat.shape):
        _gradient(flat_grad[rows].float(), flat[rows], _flat(out)[rows])
    return out


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
    return _forward(h, probs)


@weighted_swiglu.register_fake
def _(h: Tensor, probs: Tensor) -> Tensor:  # noqa: ARG001
    return h.new_empty(_halve(h.shape))


@torch.library.custom_op("peakcast::weighted_swiglu_backward", mutates_args=())
def weighted_swiglu_backward(grad: Tensor, h: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of ``h`` and ``probs``."""
    out, grad_probs = h.new_empty(h.shape), probs.new_empty(probs.shape)
    for rows in row_blocks(*h.shape):
        gate, up = h[rows].float().chunk(2, -1)
        wide = grad[rows].float()
        grad_probs[rows] = (wide * silu(gate) * up).sum(-1)
        _gradient(wide * probs[rows].unsqueeze(-1), h[rows], out[rows])
    return out, grad_probs


@weighted_swiglu_backward.register_fake
def _(grad: Tensor, h: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    return h.new_empty(h.shape), torch.empty_like(probs)


weighted_swiglu.register_autograd(
    lambda ctx, grad: (
        (None, None) if grad is None else weighted_swiglu_backward(grad, *ctx.saved_tensors)
    ),
    setup_context=_save,
)
