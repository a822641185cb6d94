"""The sigmoid gate on attention's output, as one operator."""

import torch
from torch import Tensor


@torch.library.custom_op("peakcast::output_gate", mutates_args=())
def output_gate(x: Tensor, gate: Tensor) -> Tensor:
    """Return ``x * sigmoid(gate)`` for two tensors of one shape.

    Stands for Megatron's compiled ``Attention._apply_output_gate``: backward keeps both arguments
    (Megatron has copied the gate out of the projection's output, as it has the queries).
    """
    return (x.float() * torch.sigmoid(gate.float())).to(x.dtype).contiguous()


@output_gate.register_fake
def _(x, gate):  # noqa: ARG001
    return x.new_empty(x.shape)


@torch.library.custom_op("peakcast::output_gate_backward", mutates_args=())
def output_gate_backward(grad: Tensor, x: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of ``x`` and ``gate``."""
    wide, sigmoid = grad.float(), torch.sigmoid(gate.float())
    grad_gate = wide * x.float() * sigmoid * (1 - sigmoid)
    return (wide * sigmoid).to(x.dtype).contiguous(), grad_gate.to(gate.dtype).contiguous()


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
