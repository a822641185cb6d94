"""Transformer Engine on a device without kernels: its extension's functions, run on the host.

`install` replaces single functions of ``transformer_engine_torch`` and the launches of its Triton
kernels. All of Transformer Engine's Python stays: which tensors it saves for backward, which
buffers it makes, what it does with frozen weights. Named after version 2.13.
"""

from collections.abc import Callable
from typing import Any

import te_fused_attention
import te_permutation
import torch
from te_permutation import host
from torch import Tensor


def _operand(x: Tensor, transpose: bool) -> Tensor:
    return host(x).t() if transpose else host(x)


def _multiply(a: Tensor, turn_a: bool, b: Tensor, turn_b: bool, out: Tensor, add: bool) -> None:
    """Write ``op(b) @ op(a)``, the row-major reading of a column-major product."""
    left, right = _operand(b, turn_b), _operand(a, turn_a)
    if not left.numel() or not right.numel():  # no rows: the extension writes zeros
        product = torch.zeros(out.shape, dtype=torch.float32)
    else:
        product = left.to(torch.float32) @ right.to(torch.float32)
    out.copy_(out.float() + product if add else product)


def grouped_gemm(*args: Any) -> list[Tensor]:
    """Answer to ``te_general_grouped_gemm`` without activations; biases, all empty, come back."""
    a, turn_a, b, turn_b, out, _, splits, biases = args[:8]
    single, accumulate = args[9], args[14]
    outs = host(out[0]).split(splits) if single else [host(x) for x in out]
    for each_a, each_b, into in zip(a, b, outs, strict=True):
        if into.numel():
            _multiply(each_a, turn_a, each_b, turn_b, into, accumulate)
    return biases


def gemm(*args: Any, **_: Any) -> tuple[Tensor, None, None, None]:
    """Answer to ``generic_gemm`` of two matrices."""
    from transformer_engine.pytorch.constants import TE_DType

    a, turn_a, b, turn_b, out, _quantizer, dtype, bias = args[:8]
    if bias is not None:
        raise NotImplementedError("a product with a bias; the layers here have none")
    if out is None:
        rows, columns = _operand(b, turn_b).shape[0], _operand(a, turn_a).shape[1]
        kind = next((k for k, v in TE_DType.items() if v == dtype), b.dtype)
        out = torch.empty(rows, columns, dtype=kind, device=b.device)
    _multiply(a, turn_a, b, turn_b, host(out), args[14])
    return out, None, None, None


class _WaitedOnce:
    """A transfer that may be waited for again, as NCCL's may; gloo's would wait for another."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def wait(self) -> None:
        """Wait until it is done."""
        if self._work is not None:
            self._work.wait()
            self._work = None


def _over_gloo(exchange: Callable[..., list[Any]]) -> Callable[..., list[_WaitedOnce]]:
    """Return the ring's exchange with a neighbour, unbatched: only NCCL has batches."""
    return lambda *args: [_WaitedOnce(work) for work in exchange(*args[:-1], False)]


def _left_alone(*args: Any) -> list[Tensor]:
    """Grouped products into tensors that are there, not computed."""
    return args[7]


def install(computing: bool = True) -> None:
    """Replace them, in this process; `ImportError` where Transformer Engine is not installed.

    ``computing=False``: results are made and left as they are, on one rank.
    """
    import transformer_engine.pytorch.triton.permutation as permutation
    import transformer_engine_torch as extension
    from transformer_engine.pytorch.attention.dot_product_attention import context_parallel as ring

    for name, run in te_permutation.KERNELS.items():
        launched = run if computing else te_permutation.nothing
        setattr(permutation, name, te_permutation.Launch(launched))
    functions = {"generic_gemm": gemm, "te_general_grouped_gemm": grouped_gemm}
    functions |= te_fused_attention.FUNCTIONS
    if not computing:
        functions |= {"te_general_grouped_gemm": _left_alone} | te_fused_attention.MADE
    for name, function in functions.items():
        if not hasattr(extension, name):
            raise ImportError(f"transformer_engine_torch has no {name}; these are of version 2.13")
        setattr(extension, name, function)
    ring.flash_attn_p2p_communicate = _over_gloo(ring.flash_attn_p2p_communicate)
