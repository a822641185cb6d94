"""Depthwise causal convolution and SiLU over packed requests, as one operator."""

import torch
from torch import Tensor
from torch.nn.functional import silu


def _positions(lengths: list[int]) -> Tensor:
    parts = [torch.arange(length) for length in lengths]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)


def _earlier(x: Tensor, steps: int, positions: Tensor) -> Tensor:
    """Each row's row so many positions earlier in its request, zeros before its start."""
    rows = torch.arange(x.shape[0]) - steps
    return x[rows] * (positions >= steps).unsqueeze(-1) if steps else x


def _convolve(x: Tensor, weight: Tensor, positions: Tensor) -> Tensor:
    width = weight.shape[1]
    parts = (_earlier(x, width - 1 - tap, positions) * weight[:, tap] for tap in range(width))
    return sum(parts, torch.zeros_like(x))


@torch.library.custom_op("peakcast::causal_conv", mutates_args=())
def causal_conv(x: Tensor, weight: Tensor, lengths: list[int]) -> Tensor:
    """Return ``silu(conv(x))``: each channel over its own last few positions of the same request.

    Parameters
    ----------
    x
        (T, channels), requests one after another.
    weight
        (channels, width); the last tap is the position itself.
    lengths
        Tokens of each request; they sum to T.

    Notes
    -----
    Stands for the causal convolution of causal-conv1d (``causal_conv1d_fn``) and of
    flash-linear-attention (``fla/modules/convolution.py``) with their SiLU: backward keeps x and
    weight, and makes the convolution again.
    """
    return silu(_convolve(x.float(), weight.float(), _positions(lengths))).to(x.dtype)


@causal_conv.register_fake
def _(x, weight, lengths):  # noqa: ARG001
    return x.new_empty(x.shape)


@torch.library.custom_op("peakcast::causal_conv_backward", mutates_args=())
def causal_conv_backward(
    grad: Tensor, x: Tensor, weight: Tensor, lengths: list[int]
) -> tuple[Tensor, Tensor]:
    """Return the gradients of ``x`` and ``weight``; the kernel makes both, wanted or not."""
    positions, width = _positions(lengths), weight.shape[1]
    wide, taps = x.float(), weight.float()
    inner = _convolve(wide, taps, positions)
    sigmoid = torch.sigmoid(inner)
    inner_grad = grad.float() * sigmoid * (1 + inner * (1 - sigmoid))
    grad_x, grad_taps = torch.zeros_like(wide), torch.empty_like(taps)
    for tap in range(width):
        steps = width - 1 - tap
        grad_taps[:, tap] = (inner_grad * _earlier(wide, steps, positions)).sum(0)
        reached = torch.arange(x.shape[0]) + steps
        inside = reached < x.shape[0]
        same = torch.zeros(x.shape[0], dtype=torch.bool)
        same[inside] = positions[reached[inside]] >= steps
        later = torch.zeros_like(wide)
        later[same] = inner_grad[reached[same]]
        grad_x += later * taps[:, tap]
    return grad_x.to(x.dtype), grad_taps.to(weight.dtype)


@causal_conv_backward.register_fake
def _(grad, x, weight, lengths):  # noqa: ARG001
    return x.new_empty(x.shape), weight.new_empty(weight.shape)


def _save(ctx, inputs, output) -> None:  # noqa: ARG001
    x, weight, ctx.lengths = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight)


def _backward(ctx, grad):
    if grad is None:
        return None, None, None
    return *causal_conv_backward(grad, *ctx.saved_tensors, ctx.lengths), None


causal_conv.register_autograd(_backward, setup_context=_save)
