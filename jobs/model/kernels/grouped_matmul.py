"""Matrix products of routed rows with the weight of their expert, as one grouped operator."""

import torch
from torch import Tensor


@torch.library.custom_op("peakcast::grouped_matmul", mutates_args=())
def grouped_matmul(x: Tensor, weight: Tensor, counts: list[int]) -> Tensor:
    """Multiply consecutive runs of rows, ``counts[e]`` each, by ``weight[e]``.

    Parameters
    ----------
    x
        (rows, a), rows sorted by expert.
    weight
        (experts, a, b); may be a transposed view.
    counts
        Rows of each expert; they sum to rows.

    Returns
    -------
    Tensor
        (rows, b).

    Notes
    -----
    Stands for a grouped GEMM (``torch._grouped_mm``, CUTLASS grouped GEMM). Backward keeps the
    weight where ``x`` needs a gradient and ``x`` where the weight does: a frozen weight keeps no
    input.
    """
    out = x.new_empty(x.shape[0], weight.shape[2])
    start = 0
    for expert, count in enumerate(counts):
        if count:
            torch.mm(x[start : start + count], weight[expert], out=out[start : start + count])
        start += count
    return out


@grouped_matmul.register_fake
def _(x: Tensor, weight: Tensor, counts: list[int]) -> Tensor:  # noqa: ARG001
    return x.new_empty(x.shape[0], weight.shape[2])


@torch.library.custom_op("peakcast::grouped_weight_gradient", mutates_args=())
def grouped_weight_gradient(x: Tensor, grad: Tensor, counts: list[int]) -> Tensor:
    """Return ``x[run]ᵀ @ grad[run]`` of each expert's run of rows, (experts, a, b)."""
    out = x.new_zeros(len(counts), x.shape[1], grad.shape[1])
    start = 0
    for expert, count in enumerate(counts):
        if count:
            run = slice(start, start + count)
            torch.mm(x[run].t(), grad[run], out=out[expert])
        start += count
    return out


@grouped_weight_gradient.register_fake
def _(x: Tensor, grad: Tensor, counts: list[int]) -> Tensor:
    return x.new_empty(len(counts), x.shape[1], grad.shape[1])


def _save(ctx, inputs, output) -> None:  # noqa: ARG001
    x, weight, counts = inputs
    ctx.counts = counts
    ctx.set_materialize_grads(False)
    x_needed, weight_needed = ctx.needs_input_grad[:2]
    ctx.save_for_backward(x if weight_needed else None, weight if x_needed else None)


def _backward(ctx, grad):
    if grad is None:
        return None, None, None
    x, weight = ctx.saved_tensors
    grad_x = grad_weight = None
    if weight is not None:
        grad_x = grouped_matmul(grad, weight.transpose(1, 2), ctx.counts)
    if x is not None:
        grad_weight = grouped_weight_gradient(x, grad, ctx.counts)
    return grad_x, grad_weight, None


grouped_matmul.register_autograd(_backward, setup_context=_save)
