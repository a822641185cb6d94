"""Norms of linear attention: unit length, and RMSNorm with a SiLU gate; each as one operator."""

import torch
from torch import Tensor
from torch.nn.functional import silu

from jobs.model.kernels.row_blocks import row_blocks

UNIT_EPSILON = 1e-6


def _flat(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


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
    flat, out = _flat(x), x.new_empty(x.shape)
    rstd = x.new_empty(x.shape[:-1], dtype=torch.float32)
    for rows in row_blocks(*flat.shape):
        wide = flat[rows].float()
        part = torch.rsqrt(wide.square().sum(-1, keepdim=True) + UNIT_EPSILON)
        _flat(out)[rows] = wide * part
        rstd.view(-1)[rows] = part.squeeze(-1)
    return out, rstd


@unit_norm.register_fake
def _(x):
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1], dtype=torch.float32)


@torch.library.custom_op("peakcast::unit_norm_backward", mutates_args=())
def unit_norm_backward(grad: Tensor, out: Tensor, rstd: Tensor) -> Tensor:
    """Return the gradient of ``x``."""
    grad_x = out.new_empty(out.shape)
    flat, flat_grad, scale = _flat(out), _flat(grad), rstd.reshape(-1, 1)
    for rows in row_blocks(*flat.shape):
        grad_wide, wide = flat_grad[rows].float(), flat[rows].float()
        along = (grad_wide * wide).sum(-1, keepdim=True)
        _flat(grad_x)[rows] = (grad_wide - along * wide) * scale[rows]
    return grad_x


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
    flat, flat_gate, scale = _flat(x), _flat(gate), weight.float()
    out, rstd = x.new_empty(x.shape), x.new_empty(x.shape[:-1], dtype=torch.float32)
    for rows in row_blocks(*flat.shape):
        wide = flat[rows].float()
        part = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        _flat(out)[rows] = wide * part * scale * silu(flat_gate[rows].float())
        rstd.view(-1)[rows] = part.squeeze(-1)
    return out, rstd


@gated_norm.register_fake
def _(x, gate, weight, eps):  # noqa: ARG001
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1], dtype=torch.float32)


@torch.library.custom_op("peakcast::gated_norm_backward", mutates_args=())
def gated_norm_backward(
    grad: Tensor, x: Tensor, gate: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of ``x``, ``gate`` and ``weight``; the kernel makes all three."""
    grad_x, grad_gate = x.new_empty(x.shape), gate.new_empty(gate.shape)
    total, scale = torch.zeros_like(weight, dtype=torch.float32), weight.float()
    for rows in row_blocks(*_flat(x).shape):
        wide_grad, wide_gate = _flat(grad)[rows].float(), _flat(gate)[rows].float()
        part = rstd.reshape(-1, 1)[rows]
        normed, sigmoid = _flat(x)[rows].float() * part, torch.sigmoid(wide_gate)
        opened = wide_grad * wide_gate * sigmoid
        total += (opened * normed).sum(0)
        opened = opened * scale
        _flat(grad_x)[rows] = (opened - normed * (opened * normed).mean(-1, keepdim=True)) * part
        slope = sigmoid * (1 + wide_gate * (1 - sigmoid))
        _flat(grad_gate)[rows] = wide_grad * normed * scale * slope
    return grad_x, grad_gate, total.to(weight.dtype)


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
