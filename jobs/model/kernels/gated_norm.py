"""Norms of linear attention: unit length, and RMSNorm with a SiLU gate; each as one operator."""

import torch
from torch import Tensor
from torch.nn.functional import silu

UNIT_EPSILON = 1e-6


@torch.library.custom_op("peakcast::unit_norm", mutates_args=())
def unit_norm(x: Tensor) -> tuple[Tensor, Tensor]:
    """Scale ``x`` to unit length along its last dimension.

    Returns
    -------
    tuple
        Output, like ``x``, and the reciprocal length of each row, fp32.

    Notes
    -----
    Stands for flash-linear-attention's ``l2norm`` (``fla/modules/l2norm.py``): backward keeps the
    output and the row statistic, not ``x``.
    """
    wide = x.float()
    rstd = torch.rsqrt(wide.square().sum(-1, keepdim=True) + UNIT_EPSILON)
    return (wide * rstd).to(x.dtype).contiguous(), rstd.squeeze(-1).contiguous()


@unit_norm.register_fake
def _(x):
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1], dtype=torch.float32)


@torch.library.custom_op("peakcast::unit_norm_backward", mutates_args=())
def unit_norm_backward(grad: Tensor, out: Tensor, rstd: Tensor) -> Tensor:
    """Return the gradient of ``x``."""
    grad_wide, wide = grad.float(), out.float()
    along = (grad_wide * wide).sum(-1, keepdim=True)
    return ((grad_wide - along * wide) * rstd.unsqueeze(-1)).to(out.dtype).contiguous()


@unit_norm_backward.register_fake
def _(grad, out, rstd):  # noqa: ARG001
    return out.new_empty(out.shape)


def _save_unit(ctx, inputs, output) -> None:  # noqa: ARG001
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*output)


unit_norm.register_autograd(
    lambda ctx, grad, _: None if grad is None else unit_norm_backward(grad, *ctx.saved_tensors),
    setup_context=_save_unit,
)


@torch.library.custom_op("peakcast::gated_norm", mutates_args=())
def gated_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return ``rms_norm(x) * weight * silu(gate)`` and the norm's row statistic, fp32.

    Stands for flash-linear-attention's ``FusedRMSNormGated`` (``fla/modules/fused_norm_gate.py``):
    backward keeps x, gate, weight and the row statistic.
    """
    wide = x.float()
    rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    out = wide * rstd * weight.float() * silu(gate.float())
    return out.to(x.dtype).contiguous(), rstd.squeeze(-1).contiguous()


@gated_norm.register_fake
def _(x, gate, weight, eps):  # noqa: ARG001
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1], dtype=torch.float32)


@torch.library.custom_op("peakcast::gated_norm_backward", mutates_args=())
def gated_norm_backward(
    grad: Tensor, x: Tensor, gate: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of ``x``, ``gate`` and ``weight``; the kernel makes all three."""
    wide_grad, wide_gate, scale = grad.float(), gate.float(), weight.float()
    normed = x.float() * rstd.unsqueeze(-1)
    sigmoid = torch.sigmoid(wide_gate)
    opened = wide_grad * wide_gate * sigmoid
    grad_weight = (opened * normed).flatten(0, -2).sum(0)
    scaled = opened * scale
    grad_x = scaled - normed * (scaled * normed).mean(-1, keepdim=True)
    slope = sigmoid * (1 + wide_gate * (1 - sigmoid))
    grad_gate = wide_grad * normed * scale * slope
    return (
        (grad_x * rstd.unsqueeze(-1)).to(x.dtype).contiguous(),
        grad_gate.to(gate.dtype).contiguous(),
        grad_weight.to(weight.dtype),
    )


@gated_norm_backward.register_fake
def _(grad, x, gate, weight, rstd):  # noqa: ARG001
    return tuple(t.new_empty(t.shape) for t in (x, gate, weight))


def _save(ctx, inputs, output) -> None:
    x, gate, weight, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, gate, weight, output[1])


def _backward(ctx, grad, _grad_rstd):
    if grad is None:
        return None, None, None, None
    return *gated_norm_backward(grad, *ctx.saved_tensors), None


gated_norm.register_autograd(_backward, setup_context=_save)
