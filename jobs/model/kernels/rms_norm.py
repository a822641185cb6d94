"""RMSNorm as one operator."""

import torch
from torch import Tensor

from jobs.model.kernels.row_blocks import row_blocks


@torch.library.custom_op("peakcast::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Scale ``x`` to unit root mean square along its last dimension, then by ``weight``.

    Returns
    -------
    tuple
        Output, like ``x``, and the reciprocal root mean square of each row, fp32, (rows,).

    Notes
    -----
    Backward keeps x, weight and the row statistic, as Transformer Engine's RMSNorm does
    (``transformer_engine/pytorch/module/_common.py``).
    """
    flat, scale = x.reshape(-1, x.shape[-1]), weight.float()
    out = flat.new_empty(flat.shape)
    rstd = flat.new_empty(flat.shape[0], dtype=torch.float32)
    for rows in row_blocks(*flat.shape):
        wide = flat[rows].float()
        part = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        out[rows] = wide * part * scale
        rstd[rows] = part.squeeze(-1)
    return out.view(x.shape), rstd


@rms_norm.register_fake
def _(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    rows = x.numel() // x.shape[-1]
    return x.new_empty(x.shape), x.new_empty(rows, dtype=torch.float32)


@torch.library.custom_op("peakcast::rms_norm_backward", mutates_args=())
def rms_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of ``x`` and ``weight``; the kernel makes both, wanted or not."""
    flat, flat_grad = (t.reshape(-1, t.shape[-1]) for t in (x, grad))
    scale, total = weight.float(), torch.zeros_like(weight, dtype=torch.float32)
    grad_x = flat.new_empty(flat.shape)
    for rows in row_blocks(*flat.shape):
        part = rstd[rows].unsqueeze(-1)
        normed, wide = flat[rows].float() * part, flat_grad[rows].float()
        total += (wide * normed).sum(0)
        wide = wide * scale
        grad_x[rows] = (wide - normed * (wide * normed).mean(-1, keepdim=True)) * part
    return grad_x.view(x.shape), total.to(weight.dtype)


@rms_norm_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    return x.new_empty(x.shape), torch.empty_like(weight)


def _save(ctx, inputs, output) -> None:
    x, weight, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, output[1])


def _backward(ctx, grad, _grad_rstd):
    if grad is None:
        return None, None, None
    grad_x, grad_weight = rms_norm_backward(grad, *ctx.saved_tensors)
    return grad_x, grad_weight, None


rms_norm.register_autograd(_backward, setup_context=_save)
