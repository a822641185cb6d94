"""Data movements around the exchange of tokens for heads, each one operator and its own inverse."""

from itertools import accumulate

import torch
from torch import Tensor


@torch.library.custom_op("peakcast::split_heads", mutates_args=())
def split_heads(x: Tensor, sections: list[int], degree: int) -> Tensor:
    """(T, width) to (degree·T, width/degree): for each rank in turn its heads of every section.

    ``sections`` are the widths of queries, keys and so on; each divides by ``degree``.
    """
    parts = [section.chunk(degree, -1) for section in x.split(sections, -1)]
    return torch.cat([torch.cat([part[rank] for part in parts], -1) for rank in range(degree)])


@split_heads.register_fake
def _(x, sections, degree):  # noqa: ARG001
    return x.new_empty(x.shape[0] * degree, x.shape[1] // degree)


@torch.library.custom_op("peakcast::merge_heads", mutates_args=())
def merge_heads(x: Tensor, sections: list[int], degree: int) -> Tensor:
    """(degree·T, width/degree) to (T, width): the inverse of `split_heads`."""
    local = [section // degree for section in sections]
    ranks = [rows.split(local, -1) for rows in x.chunk(degree)]
    if not x.numel():
        return x.new_empty(x.shape[0] // degree, x.shape[1] * degree)
    return torch.cat([part for parts in zip(*ranks, strict=True) for part in parts], -1)


@merge_heads.register_fake
def _(x, sections, degree):  # noqa: ARG001
    return x.new_empty(x.shape[0] // degree, x.shape[1] * degree)


def _pieces(lengths: list[int], degree: int) -> list[tuple[int, int]]:
    """(first row, rows) in ranks' zigzag order of each chunk, in order of request and position."""
    local = sum(lengths) // degree
    starts = [0, *accumulate(length // degree for length in lengths)]
    found = []
    for start, length in zip(starts, lengths, strict=False):
        rows = length // (2 * degree)
        found += [(rank * local + start, rows) for rank in range(degree)]
        found += [(rank * local + start + rows, rows) for rank in reversed(range(degree))]
    return found


@torch.library.custom_op("peakcast::order_rows", mutates_args=())
def order_rows(x: Tensor, lengths: list[int], degree: int) -> Tensor:
    """(degree·T, width), ranks' rows one after another, to whole requests in order of position."""
    pieces = _pieces(lengths, degree)
    return torch.cat([x[a : a + rows] for a, rows in pieces]) if pieces else x.clone()


@torch.library.custom_op("peakcast::zigzag_rows", mutates_args=())
def zigzag_rows(x: Tensor, lengths: list[int], degree: int) -> Tensor:
    """Give whole requests back to the ranks' zigzag order: the inverse of `order_rows`."""
    out, read = torch.empty_like(x), 0
    for start, rows in _pieces(lengths, degree):
        out[start : start + rows] = x[read : read + rows]
        read += rows
    return out


@order_rows.register_fake
def _(x, lengths, degree):  # noqa: ARG001
    return x.new_empty(x.shape)


@zigzag_rows.register_fake
def _(x, lengths, degree):  # noqa: ARG001
    return x.new_empty(x.shape)


def _settings(ctx, inputs, output) -> None:  # noqa: ARG001
    _, *ctx.settings = inputs
    ctx.set_materialize_grads(False)


for _operator, _inverse in (
    (split_heads, merge_heads),
    (merge_heads, split_heads),
    (order_rows, zigzag_rows),
    (zigzag_rows, order_rows),
):
    _operator.register_autograd(
        lambda ctx, grad, inverse=_inverse: (
            None if grad is None else inverse(grad.contiguous(), *ctx.settings),
            None,
            None,
        ),
        setup_context=_settings,
    )
