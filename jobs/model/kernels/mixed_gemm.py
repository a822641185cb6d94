"""A matrix product of bf16 operands with a wider output, as one operator."""

import torch
from torch import Tensor

from jobs.model.kernels.row_blocks import row_blocks


@torch.library.custom_op("peakcast::mixed_gemm", mutates_args=())
def mixed_gemm(a: Tensor, b: Tensor, out_dtype: torch.dtype, layout: str) -> Tensor:
    """Multiply in ``out_dtype`` without wide copies of the operands.

    Stands for Transformer Engine's ``general_gemm``, of which Megatron's router gate uses three
    column-major layouts: ``TN`` is b·aᵀ, ``NN`` b·a, ``NT`` bᵀ·a.
    """
    if layout == "NT":
        out = b.new_zeros(b.shape[1], a.shape[1], dtype=out_dtype)
        for rows in row_blocks(b.shape[0], a.shape[1]):
            out.addmm_(b[rows].to(out_dtype).t(), a[rows].to(out_dtype))
        return out
    weight = a.to(out_dtype).t() if layout == "TN" else a.to(out_dtype)
    out = b.new_empty(b.shape[0], weight.shape[1], dtype=out_dtype)
    for rows in row_blocks(*b.shape):
        torch.mm(b[rows].to(out_dtype), weight, out=out[rows])
    return out


@mixed_gemm.register_fake
def _(a: Tensor, b: Tensor, out_dtype: torch.dtype, layout: str) -> Tensor:
    rows = b.shape[1] if layout == "NT" else b.shape[0]
    columns = a.shape[0] if layout == "TN" else a.shape[1]
    return b.new_empty(rows, columns, dtype=out_dtype)


def general_gemm(
    a: Tensor,
    b: Tensor,
    out_dtype: torch.dtype,
    layout: str = "TN",
    bias: Tensor | None = None,
    grad: bool = False,  # noqa: ARG001 - part of the signature that Megatron calls
) -> tuple[Tensor]:
    """Answer to Transformer Engine's ``general_gemm`` as Megatron's router gate calls it.

    Raises
    ------
    NotImplementedError
        For a bias: our routers have none.
    """
    if bias is not None:
        raise NotImplementedError("general_gemm with a bias; the routers here have none")
    return (mixed_gemm(a, b, out_dtype, layout),)
