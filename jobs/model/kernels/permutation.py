"""Permutations of tokens to routed rows and back, each as one operator.

They stand for Transformer Engine's mask-map kernels
(``transformer_engine/pytorch/permutation.py``): permute and unpermute keep the row-id map alone, a
chunk sort keeps one destination per row. Row sums are taken in fp32.
"""

import torch
from torch import Tensor

from jobs.model.kernels.row_blocks import row_blocks


def _entries(row_id_map: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return token, row and expert of each routed pair, ordered by token."""
    experts = row_id_map.shape[1] // 2
    used = torch.arange(experts, device=row_id_map.device) < row_id_map[:, -1:]
    token = used.nonzero(as_tuple=True)[0]
    rows = row_id_map[:, :experts][used].long()
    expert = row_id_map[:, experts:-1][used].long()
    return token, rows, expert


def _sum_rows(rows: Tensor, row_id_map: Tensor) -> Tensor:
    token, row, _ = _entries(row_id_map)
    out = rows.new_empty(row_id_map.shape[0], rows.shape[1])
    ends = [0, *row_id_map[:, -1].cumsum(0).tolist()]  # of each token's entries
    most = row_id_map.shape[1] // 2 and int(row_id_map[:, -1].max()) if len(out) else 0
    for block in row_blocks(len(out), rows.shape[1] * max(1, most)):
        entries = slice(ends[block.start], ends[block.stop])
        total = rows.new_zeros(block.stop - block.start, rows.shape[1], dtype=torch.float32)
        wide = rows.index_select(0, row[entries]).float()
        out[block] = total.index_add_(0, token[entries] - block.start, wide)
    return out


@torch.library.custom_op("peakcast::permute", mutates_args=())
def permute(
    tokens: Tensor, probs: Tensor, routing_map: Tensor, rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Copy each token to the rows of its experts, sorted by expert, then by token.

    Parameters
    ----------
    tokens, probs, routing_map
        (T, H); (T, E) fp32; (T, E) bool.
    rows
        Routed pairs, T x top-k.

    Returns
    -------
    tuple
        Rows (rows, H), their probabilities (rows,), and the row-id map (T, 2E + 1) int32: for each
        token its rows, then its experts, both filled with -1 up to E, then their number.
    """
    count, experts = routing_map.shape
    expert, token = routing_map.t().nonzero(as_tuple=True)
    if token.numel() != rows:
        raise ValueError(f"permute was told of {rows} routed rows; the map holds {token.numel()}")
    place = routing_map.cumsum(1, dtype=torch.int32)[token, expert].long() - 1
    device = routing_map.device
    row_id_map = torch.full((count, 2 * experts + 1), -1, dtype=torch.int32, device=device)
    row_id_map[token, place] = torch.arange(rows, dtype=torch.int32, device=device)
    row_id_map[token, experts + place] = expert.int()
    row_id_map[:, -1] = routing_map.sum(1)
    return tokens.index_select(0, token), probs[token, expert], row_id_map


@permute.register_fake
def _(tokens, probs, routing_map, rows):
    row_id_map = tokens.new_empty(
        routing_map.shape[0], 2 * routing_map.shape[1] + 1, dtype=torch.int32
    )
    return tokens.new_empty(rows, tokens.shape[1]), probs.new_empty(rows), row_id_map


@torch.library.custom_op("peakcast::permute_backward", mutates_args=())
def permute_backward(grad: Tensor, grad_probs: Tensor, row_id_map: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of tokens (T, H) and probs (T, E)."""
    token, row, expert = _entries(row_id_map)
    out = grad_probs.new_zeros(row_id_map.shape[0], row_id_map.shape[1] // 2)
    out[token, expert] = grad_probs[row]
    return _sum_rows(grad, row_id_map), out


@permute_backward.register_fake
def _(grad, grad_probs, row_id_map):
    tokens, width = row_id_map.shape
    return grad.new_empty(tokens, grad.shape[1]), grad_probs.new_empty(tokens, width // 2)


def _save_permute(ctx, inputs, output) -> None:  # noqa: ARG001
    ctx.save_for_backward(output[2])
    ctx.mark_non_differentiable(output[2])


def _backward_permute(ctx, grad, grad_probs, _grad_map):
    (row_id_map,) = ctx.saved_tensors
    return *permute_backward(grad, grad_probs, row_id_map), None, None


permute.register_autograd(_backward_permute, setup_context=_save_permute)


@torch.library.custom_op("peakcast::unpermute", mutates_args=())
def unpermute(rows: Tensor, row_id_map: Tensor) -> Tensor:
    """Sum the rows (R, H) of each token back to (T, H)."""
    return _sum_rows(rows, row_id_map)


@unpermute.register_fake
def _(rows, row_id_map):
    return rows.new_empty(row_id_map.shape[0], rows.shape[1])


@torch.library.custom_op("peakcast::unpermute_backward", mutates_args=())
def unpermute_backward(grad: Tensor, row_id_map: Tensor, rows: int) -> Tensor:
    """Copy each token's gradient (T, H) to its rows, (rows, H)."""
    token, row, _ = _entries(row_id_map)
    out = grad.new_empty(rows, grad.shape[1])
    for block in row_blocks(len(row), grad.shape[1]):
        out[row[block]] = grad.index_select(0, token[block])
    return out


@unpermute_backward.register_fake
def _(grad, row_id_map, rows):  # noqa: ARG001
    return grad.new_empty(rows, grad.shape[1])


def _save_unpermute(ctx, inputs, output) -> None:  # noqa: ARG001
    rows, row_id_map = inputs
    ctx.rows = rows.shape[0]
    ctx.save_for_backward(row_id_map)


unpermute.register_autograd(
    lambda ctx, grad: (unpermute_backward(grad, ctx.saved_tensors[0], ctx.rows), None),
    setup_context=_save_unpermute,
)


def _destinations(rows: Tensor, splits: Tensor, order: Tensor) -> Tensor:
    """Return where each of ``rows`` goes when chunks of ``splits`` rows are laid in ``order``."""
    splits, order = splits.to(rows.device), order.to(rows.device)
    starts = splits.cumsum(0) - splits
    sizes = splits[order]
    begins = sizes.cumsum(0) - sizes
    total, device = rows.shape[0], rows.device
    shifts = (starts[order] - begins).repeat_interleave(sizes, output_size=total)
    source = torch.arange(total, device=device) + shifts
    destination = torch.empty(total, dtype=torch.int32, device=device)
    destination[source] = torch.arange(total, dtype=torch.int32, device=device)
    return destination


def _scatter(rows: Tensor, destination: Tensor) -> Tensor:
    return torch.empty_like(rows).index_copy_(0, destination.long(), rows)


@torch.library.custom_op("peakcast::sort_chunks", mutates_args=())
def sort_chunks(rows: Tensor, splits: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """Lay chunks of rows, ``splits`` long, in ``order``; also return rows' places, int32 (R,)."""
    destination = _destinations(rows, splits, order)
    return _scatter(rows, destination), destination


@sort_chunks.register_fake
def _(rows, splits, order):  # noqa: ARG001
    return rows.new_empty(rows.shape), rows.new_empty(rows.shape[0], dtype=torch.int32)


@torch.library.custom_op("peakcast::sort_chunks_with_probs", mutates_args=())
def sort_chunks_with_probs(
    rows: Tensor, probs: Tensor, splits: Tensor, order: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`sort_chunks` of rows (R, H) and probabilities (R,) together."""
    destination = _destinations(rows, splits, order)
    return _scatter(rows, destination), _scatter(probs, destination), destination


@sort_chunks_with_probs.register_fake
def _(rows, probs, splits, order):  # noqa: ARG001
    place = rows.new_empty(rows.shape[0], dtype=torch.int32)
    return rows.new_empty(rows.shape), probs.new_empty(probs.shape), place


@torch.library.custom_op("peakcast::unsort_chunks", mutates_args=())
def unsort_chunks(grad: Tensor, destination: Tensor) -> Tensor:
    """Bring sorted rows (R, …) back to their first places."""
    return grad.index_select(0, destination)


@unsort_chunks.register_fake
def _(grad, destination):  # noqa: ARG001
    return grad.new_empty(grad.shape)


def _save_sort(ctx, inputs, output) -> None:  # noqa: ARG001
    ctx.save_for_backward(output[-1])
    ctx.mark_non_differentiable(output[-1])


def _backward_sort(ctx, *grads):
    (destination,) = ctx.saved_tensors
    return *(unsort_chunks(grad, destination) for grad in grads[:-1]), None, None


sort_chunks.register_autograd(_backward_sort, setup_context=_save_sort)
sort_chunks_with_probs.register_autograd(_backward_sort, setup_context=_save_sort)


# The names and signatures under which Megatron's all-to-all dispatcher calls Transformer Engine.


def fused_permute_with_probs(tokens, probs, routing_map, num_out_tokens):
    """Answer to Transformer Engine's ``moe_permute_with_probs``."""
    return permute(tokens, probs, routing_map, num_out_tokens)


def fused_unpermute(rows, row_id_map, merging_probs=None, restore_shape=None):  # noqa: ARG001
    """Answer to ``moe_unpermute``; merging probabilities are applied by the experts' SwiGLU."""
    if merging_probs is not None:
        raise NotImplementedError("unpermute with merging probabilities; the experts apply them")
    return unpermute(rows, row_id_map)


def fused_sort_chunks_by_index(rows, splits, order):
    """Answer to ``moe_sort_chunks_by_index``."""
    return sort_chunks(rows, splits, order)[0]


def fused_sort_chunks_by_index_with_probs(rows, probs, splits, order):
    """Answer to ``moe_sort_chunks_by_index_with_probs``."""
    return sort_chunks_with_probs(rows, probs, splits, order)[:2]
