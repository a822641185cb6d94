"""Transformer Engine's fused attention, and the helpers of its ring, on the host.

Each makes the tensors that the extension's C++ makes (``csrc/extensions/attention.cpp``) on the
device's allocator and fills them by CPU operators. cuDNN's workspace of backward is what its
frontend asks for (``node/scaled_dot_product_flash_attention.h``, packed requests); what a plan of
its own may ask for beyond is known to cuDNN alone.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from te_permutation import host
from torch import Tensor

aten = torch.ops.aten

Runs = list[tuple[slice, slice]]


def _runs(cu_q: Tensor, cu_kv: Tensor, padded_q: Any, padded_kv: Any) -> Runs:
    """Return each request's rows among queries and among keys."""
    q, kv = host(cu_q).tolist(), host(cu_kv).tolist()
    starts_q = q if padded_q is None else host(padded_q).tolist()
    starts_kv = kv if padded_kv is None else host(padded_kv).tolist()
    return [
        (
            slice(starts_q[i], starts_q[i] + q[i + 1] - q[i]),
            slice(starts_kv[i], starts_kv[i] + kv[i + 1] - kv[i]),
        )
        for i in range(len(q) - 1)
    ]


def _heads_first(x: Tensor) -> Tensor:
    """(T, heads, channels) to (1, heads, T, channels)."""
    return x.transpose(0, 1)[None]


def _bucket(tokens: int) -> int:
    """Return the tokens that a graph is made for (``get_max_tokens``, ``fused_attn/utils.cu``)."""
    if tokens > 32_768:
        return -(-tokens // 32_768) * 32_768
    return max(1024, 1 << (tokens - 1).bit_length())


def _workspace(q: Tensor, k: Tensor) -> Tensor:
    """Return backward's scratch, all fp32: the sum of queries' gradients, a sum a query and head.

    Where queries outnumber keys, each query head's gradients of keys and of values as well.
    """
    heads, channels = q.shape[1:]
    width = heads * (channels + 1)
    elements = _bucket(len(q)) * width
    if k.shape[1] != heads:
        elements += 2 * _bucket(len(k)) * heads * channels
    return torch.empty(4 * elements, dtype=torch.uint8, device=q.device)


def _causal(mask: Any) -> bool:
    if mask.name not in ("NVTE_PADDING_CAUSAL_MASK", "NVTE_PADDING_MASK"):
        raise NotImplementedError(f"fused attention with mask {mask.name}")
    return mask.name == "NVTE_PADDING_CAUSAL_MASK"


def made_forward(*args: Any) -> list[Tensor]:
    """Make what ``fused_attn_fwd`` returns: output, log-sum-exp (T, heads, 1), random state."""
    q, v = args[14], args[16]
    out = torch.zeros(*q.shape[:2], v.shape[2], dtype=q.dtype, device=q.device)
    random = torch.zeros(2, dtype=torch.int64, device=q.device)
    log_sum = torch.empty(*q.shape[:2], 1, dtype=torch.float32, device=q.device)
    return [out, log_sum, random]


def forward(*args: Any) -> list[Tensor]:
    """Answer to ``fused_attn_fwd``."""
    scale, mask = args[3], args[8]
    cu_q, cu_kv, q, k, v, _, padded_q, padded_kv = args[12:20]
    results = made_forward(*args)
    into, sums, q, k, v = map(host, (*results[:2], q, k, v))
    for rows, keys in _runs(cu_q, cu_kv, padded_q, padded_kv):
        parts = (_heads_first(x) for x in (q[rows], k[keys], v[keys]))
        part, part_sum = aten._scaled_dot_product_flash_attention_for_cpu(
            *parts, 0.0, _causal(mask), scale=scale
        )
        into[rows] = part[0].transpose(0, 1)
        sums[rows, :, 0] = part_sum[0].t()
    return results


def made_backward(*args: Any) -> list[Tensor | None]:
    """Make what ``fused_attn_bwd`` returns: gradients of queries, keys and values; no others."""
    grads = [torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in args[14:17]]
    scratch = _workspace(*args[14:16])
    del scratch  # it is there while the kernel runs
    return [*grads, None, None]


def backward(*args: Any) -> list[Tensor | None]:
    """Answer to ``fused_attn_bwd``."""
    scale, mask = args[2], args[7]
    cu_q, cu_kv, q, k, v, out, grad, _, _, aux, padded_q, padded_kv = args[12:24]
    results = made_backward(*args)
    into = [host(x) for x in results[:3]]
    q, k, v, out, grad, sums = map(host, (q, k, v, out, grad, aux[0]))
    for rows, keys in _runs(cu_q, cu_kv, padded_q, padded_kv):
        tensors = (grad[rows], q[rows], k[keys], v[keys], out[rows])
        parts = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *(_heads_first(x) for x in tensors),
            sums[rows, :, 0].t()[None].contiguous(),
            *(0.0, _causal(mask)),
            scale=scale,
        )
        for whole, part, where in zip(into, parts, (rows, keys, keys), strict=True):
            whole[where] = part[0].transpose(0, 1)
    return results


# The ring's helpers. ``cu`` are where each request begins among this rank's rows.


def _halves(cu: Tensor) -> Iterator[tuple[slice, slice, slice]]:
    """Yield each request's first and second half, and its rows among halves alone."""
    starts = host(cu).tolist()
    for start, end in pairwise(starts):
        middle = (start + end) // 2
        yield slice(start, middle), slice(middle, end), slice(start // 2, end // 2)


def read_half(x: Tensor, cu: Tensor, half: int) -> Tensor:
    """Answer to ``thd_read_half_tensor``: that half of every request, (T/2, heads, channels)."""
    out = torch.empty(x.shape[0] // 2, *x.shape[1:], dtype=x.dtype, device=x.device)
    for *both, rows in _halves(cu):
        host(out)[rows] = host(x)[both[half]]
    return out


def correct_second_half_sum(total: Tensor, part: Tensor, cu: Tensor, packed: bool) -> None:
    """Answer to ``thd_second_half_lse_correction``: merge (heads, T/2) into (heads, T)."""
    assert packed
    total, part = host(total), host(part)
    for _, late, rows in _halves(cu):
        total[:, late] = torch.logaddexp(total[:, late], part[:, rows])


def read_second_half_sum(total: Tensor, cu: Tensor, packed: bool, width: int) -> Tensor:
    """Answer to ``thd_read_second_half_lse``: (heads, T/2)."""
    assert packed
    out = torch.zeros(total.shape[0], width, dtype=total.dtype, device=total.device)
    for _, late, rows in _halves(cu):
        host(out)[:, rows] = host(total)[:, late]
    return out


def correct_output(*args: Any) -> None:
    """Answer to ``thd_out_correction``: add a step's output by its share of the sum."""
    out, part, total, part_sum, cu = map(host, args[:5])
    second_half, packed = args[5:]
    assert packed
    for early, late, half in _halves(cu):
        rows = late if second_half else slice(early.start, late.stop)
        source = half if second_half else rows
        share = (part_sum[:, source] - total[:, rows]).exp().t().unsqueeze(-1)
        out[rows] = (out[rows].float() + part[source].float() * share).to(out.dtype)


def correct_gradient(grad: Tensor, part: Tensor, cu: Tensor, *how: str) -> None:
    """Answer to ``thd_grad_correction``: copy or add to each half of a request, or neither."""
    grad, part = host(grad), host(part)
    for *both, half in _halves(cu):
        for rows, action in zip(both, how, strict=True):
            source = part[half] if "none" in how else part[rows]
            if action == "copy":
                grad[rows] = source
            elif action == "add":
                grad[rows] += source


MADE = {"fused_attn_fwd": made_forward, "fused_attn_bwd": made_backward}
"""Functions that only make their results, for a device that computes nothing."""

FUNCTIONS = {
    "fused_attn_fwd": forward,
    "fused_attn_bwd": backward,
    "thd_read_half_tensor": read_half,
    "thd_second_half_lse_correction": correct_second_half_sum,
    "thd_read_second_half_lse": read_second_half_sum,
    "thd_out_correction": correct_output,
    "thd_grad_correction": correct_gradient,
}
