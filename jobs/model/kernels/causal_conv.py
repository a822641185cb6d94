"""Depthwise causal convolution and SiLU over packed requests, as one operator."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import silu

from jobs.model.kernels.row_blocks import row_blocks


def _positions(lengths: list[int], device: torch.device) -> Tensor:
    parts = [torch.arange(length, device=device) for length in lengths]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64, device=device)


def _earlier(x: Tensor, steps: int, positions: Tensor) -> Tensor:
    """Each row's row so many positions earlier in its request, zeros before its start."""
    rows = torch.arange(x.shape[0], device=x.device) - steps
    return x[rows] * (positions >= steps).unsqueeze(-1) if steps else x


class _Block(NamedTuple):
    """Rows at hand with the ``reach`` rows before and behind them that they depend on."""

    rows: slice
    around: slice

    @property
    def inner(self) -> slice:
        """The rows at hand, counted from where ``around`` begins."""
        return slice(self.rows.start - self.around.start, self.rows.stop - self.around.start)


def _blocks(rows: int, channels: int, reach: int) -> Iterator[_Block]:
    for block in row_blocks(rows, channels):
        around = slice(max(0, block.start - reach), min(rows, block.stop + reach))
        yield _Block(block, around)


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
    positions, taps, out = _positions(lengths, x.device), weight.float(), x.new_empty(x.shape)
    for block in _blocks(*x.shape, weight.shape[1] - 1):
        near = slice(block.around.start, block.rows.stop)  # nothing behind is read
        out[block.rows] = silu(_convolve(x[near].float(), taps, positions[near])[block.inner])
    return out


@causal_conv.register_fake
def _(x, weight, lengths):  # noqa: ARG001
    return x.new_empty(x.shape)


@torch.library.custom_op("peakcast::causal_conv_backward", mutates_args=())
def causal_conv_backward(
    grad: Tensor, x: Tensor, weight: Tensor, lengths: list[int]
) -> tuple[Tensor, Tensor]:
    """Return the gradients of ``x`` and ``weight``; the kernel makes both, wanted or not."""
    positions, taps = _positions(lengths, x.device), weight.float()
    grad_x, grad_taps = x.new_empty(x.shape), torch.zeros_like(taps)
    for block in _blocks(*x.shape, weight.shape[1] - 1):
        near = block.around
        parts = _gradients(grad[near].float(), x[near].float(), taps, positions[near], block.inner)
        grad_x[block.rows] = parts[0]
        grad_taps += parts[1]
    return grad_x, grad_taps.to(weight.dtype)


def _gradients(
    grad: Tensor, x: Tensor, taps: Tensor, positions: Tensor, inner: slice
) -> tuple[Tensor, Tensor]:
    """Return the gradient of the ``inner`` rows of x, and what they add to that of the taps.

    The convolution of the first rows lacks what lies before them: no inner row reads it.
    """
    width, count = taps.shape[1], x.shape[0]
    inside = _convolve(x, taps, positions)
    sigmoid = torch.sigmoid(inside)
    inside_grad = grad * sigmoid * (1 + inside * (1 - sigmoid))
    grad_x, grad_taps = torch.zeros_like(x), torch.empty_like(taps)
    for tap in range(width):
        steps = width - 1 - tap
        reached = _earlier(x, steps, positions)[inner]
        grad_taps[:, tap] = (inside_grad[inner] * reached).sum(0)
        kept = inside_grad[steps:] * (positions[steps:] >= steps).unsqueeze(-1)
        grad_x[: max(0, count - steps)] += kept * taps[:, tap]
    return grad_x[inner], grad_taps


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
