"""RMSNorm as one operator."""

import torch
from torch import Tensor


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
    wide = x.float()
    rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    out = (wide * rstd * weight.float()).to(x.dtype)
    return out.contiguous(), rstd.flatten()


@rms_norm.register_fake
def _(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    rows = x.numel() // x.shape[-1]
    return x.new_empty(x.shape), x.new_empty(rows, dtype=torch.float32)


@torch.library.custom_op("peakcast::rms_norm_backward", mutates_args=())
def rms_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of ``x`` and ``weight``; the kernel makes both, wanted or not."""
    wide = x.float()
    normed = wide * rstd.view(*x.shape[:-1], 1)
    grad_wide = grad.float()
    grad_weight = (grad_wide * normed).flatten(0, -2).sum(0).to(weight.dtype)
    scaled = grad_wide * weight.float()
    grad_x = scaled - normed * (scaled * normed).mean(-1, keepdim=True)
    grad_x = (grad_x * rstd.view(*x.shape[:-1], 1)).to(x.dtype)
    return grad_x.contiguous(), grad_weight


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
