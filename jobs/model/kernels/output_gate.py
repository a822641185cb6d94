"""The sigmoid gate on attention's output, as one operator."""

import torch
from torch import Tensor

from jobs.model.kernels.row_blocks import row_blocks


@torch.library.custom_op("peakcast::output_gate", mutates_args=())
def output_gate(x: Tensor, gate: Tensor) -> Tensor:
    """Return ``x * sigmoid(gate)`` for two tensors of one shape.

    Stands for Megatron's compiled ``Attention._apply_output_gate``: backward keeps both arguments
    (Megatron has copied the gate out of the projection's output, as it has the queries).
    """
    out = x.new_empty(x.shape)
    flat = [t.reshape(-1, t.shape[-1]) for t in (x, gate, out)]
    for rows in row_blocks(*flat[0].shape):
        flat[2][rows] = flat[0][rows].float() * torch.sigmoid(flat[1][rows].float())
    return out


@output_gate.register_fake
def _(x, gate):  # noqa: ARG001
    return x.new_empty(x.shape)


@torch.library.custom_op("peakcast::output_gate_backward", mutates_args=())
def output_gate_backward(grad: Tensor, x: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of ``x`` and ``gate``."""
    grads = x.new_empty(x.shape), gate.new_empty(gate.shape)
    flat = [t.reshape(-1, t.shape[-1]) for t in (grad, x, gate, *grads)]
    for rows in row_blocks(*flat[0].shape):
        wide, sigmoid = flat[0][rows].float(), torch.sigmoid(flat[2][rows].float())
        flat[3][rows] = wide * sigmoid
        flat[4][rows] = wide * flat[1][rows].float() * sigmoid * (1 - sigmoid)
    return grads


@output_gate_backward.register_fake
def _(grad, x, gate):  # noqa: ARG001
    return x.new_empty(x.shape), gate.new_empty(gate.shape)


def _save(ctx, inputs, output) -> None:  # noqa: ARG001
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs)


output_gate.register_autograd(
    lambda ctx, grad: (
        (None, None) if grad is None else output_gate_backward(grad, *ctx.saved_tensors)
    ),
    setup_context=_save,
)
