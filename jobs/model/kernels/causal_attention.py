"""Causal attention over packed requests in context-parallel zigzag order, as one operator."""

import torch
from torch import Tensor

aten = torch.ops.aten


def _forward_part(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Run torch's flash attention; return output and log-sum-exp (1, heads, T)."""
    if q.device.type == "cpu":
        return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
    return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=scale)[:2]


def _backward_part(
    fixed: tuple[Tensor, ...], k: Tensor, v: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v; ``fixed`` are gradient, q, output and log-sum-exp."""
    grad, q, out, log_sum = fixed
    if q.device.type == "cpu":
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, out, log_sum, 0.0, causal, scale=scale
        )
    # The random state of a dropout, which there is none of: of the kind that forward returns.
    few = [x[:, :, :1] for x in (q, k, v)]
    unread = aten._scaled_dot_product_flash_attention(*few, 0.0, False, scale=scale)[6:8]
    return aten._scaled_dot_product_flash_attention_backward(
        *(grad, q, k, v, out, log_sum, None, None, q.shape[2], k.shape[2], 0.0, causal, *unread),
        scale=scale,
    )


def _request_rows(lengths: list[int], degree: int) -> list[tuple[int, int]]:
    """Return first local row and chunk length of each request; a rank holds two chunks of it.

    At degree 1 a request is one chunk, so that its length may be odd.
    """
    rows, start = [], 0
    for length in lengths:
        chunk = length if degree == 1 else length // (2 * degree)
        rows.append((start, chunk))
        start += length // degree
    return rows


def _global_order(lengths: list[int], degree: int, device: torch.device) -> list[Tensor]:
    """For each request, the rows of the gathered keys in order of position."""
    if degree == 1:
        return [torch.arange(a, a + n, device=device) for a, n in _request_rows(lengths, 1)]
    local = sum(lengths) // degree
    orders = []
    for start, chunk in _request_rows(lengths, degree):
        within = torch.arange(chunk, device=device)
        early = [within + rank * local + start for rank in range(degree)]
        late = [rows + chunk for rows in reversed(early)]
        orders.append(torch.cat(early + late))
    return orders


def _chunks(start: int, chunk: int, degree: int, rank: int) -> list[tuple[slice, int]]:
    """Return the local rows of each chunk that this rank holds, and the position it begins at."""
    if degree == 1:
        return [(slice(start, start + chunk), 0)]
    first, last = rank, 2 * degree - 1 - rank
    return [
        (slice(start, start + chunk), first * chunk),
        (slice(start + chunk, start + 2 * chunk), last * chunk),
    ]


def _heads_first(x: Tensor) -> Tensor:
    """(T, 1, heads, channels) to (1, heads, T, channels), a view."""
    return x.permute(1, 2, 0, 3)


@torch.library.custom_op("peakcast::causal_attention", mutates_args=())
def causal_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: list[int],
    degree: int,
    rank: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Attend causally within each request; requests never see each other.

    Parameters
    ----------
    query
        Local queries (T, 1, heads, channels): of each request chunk ``rank``, then chunk
        ``2·degree - 1 - rank``.
    key, value
        (degree·T, 1, kv_heads, channels), the ranks' local rows one after another.
    lengths
        Tokens of each request over all ranks; multiples of ``2·degree`` where degree > 1.
    degree, rank
        Context-parallel size, and this rank's place.
    scale
        Factor on the scores.

    Returns
    -------
    tuple
        Output (T, 1, heads·channels) and log-sum-exp (heads, T), fp32.

    Notes
    -----
    Stands for variable-length flash attention: backward keeps query, key, value, output and
    log-sum-exp (``flash_attn_interface.py``), and no score matrix exists. Inside, each chunk is the
    merge of its full prefix and its causal diagonal block through their log-sum-exps.
    """
    tokens, _, heads, channels = query.shape
    out = query.new_empty(tokens, 1, heads, channels)
    log_sum = query.new_empty(heads, tokens, dtype=torch.float32)
    orders = _global_order(lengths, degree, query.device)
    for (start, chunk), order in zip(_request_rows(lengths, degree), orders, strict=True):
        k, v = (_heads_first(x.index_select(0, order)) for x in (key, value))
        for rows, position in _chunks(start, chunk, degree, rank):
            end = position + chunk
            part, part_sum = _attend_chunk(_heads_first(query[rows]), k, v, position, end, scale)
            out[rows] = part.permute(2, 0, 1, 3)
            log_sum[:, rows] = part_sum
    return out.view(tokens, 1, heads * channels), log_sum


def _attend_chunk(q, k, v, position, end, scale):
    diagonal = (k[:, :, position:end], v[:, :, position:end])
    out, log_sum = _forward_part(q, *diagonal, True, scale)
    if position:
        prefix = (k[:, :, :position], v[:, :, :position])
        before, before_sum = _forward_part(q, *prefix, False, scale)
        total = torch.logaddexp(log_sum, before_sum)
        share = (log_sum - total).exp().unsqueeze(-1)
        out = (out.float() * share + before.float() * (1 - share)).to(q.dtype)
        log_sum = total
    return out, log_sum[0]


@causal_attention.register_fake
def _(query, key, value, lengths, degree, rank, scale):  # noqa: ARG001
    tokens, _, heads, channels = query.shape
    log_sum = query.new_empty(heads, tokens, dtype=torch.float32)
    return query.new_empty(tokens, 1, heads * channels), log_sum


@torch.library.custom_op("peakcast::causal_attention_backward", mutates_args=())
def causal_attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    log_sum: Tensor,
    lengths: list[int],
    degree: int,
    rank: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value; keys and values of all ranks' rows."""
    tokens, _, heads, channels = query.shape
    grad, out = (x.view(tokens, 1, heads, channels) for x in (grad, out))
    grads = [x.new_empty(x.shape) for x in (query, key, value)]
    orders = _global_order(lengths, degree, query.device)
    for (start, chunk), order in zip(_request_rows(lengths, degree), orders, strict=True):
        k, v = (_heads_first(x.index_select(0, order)) for x in (key, value))
        # Of one request: sums over this rank's chunks, in fp32.
        totals = [torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (k, v)]
        for rows, position in _chunks(start, chunk, degree, rank):
            lse = log_sum[:, rows].contiguous()[None]  # the kernel takes no strides of it
            fixed = (*(_heads_first(x[rows]) for x in (grad, query, out)), lse)
            grad_q = 0.0
            for columns, causal in (
                (slice(position, position + chunk), True),
                (slice(0, position), False),
            ):
                if columns.start == columns.stop:
                    continue
                parts = _backward_part(fixed, k[:, :, columns], v[:, :, columns], causal, scale)
                grad_q = grad_q + parts[0].float()
                for total, part in zip(totals, parts[1:], strict=True):
                    total[:, :, columns] += part
            grads[0][rows] = grad_q.to(query.dtype).permute(2, 0, 1, 3)
        for whole, total in zip(grads[1:], totals, strict=True):
            whole.index_copy_(0, order, total.to(whole.dtype).permute(2, 0, 1, 3))
    return grads[0], grads[1], grads[2]


@causal_attention_backward.register_fake
def _(grad, query, key, value, out, log_sum, lengths, degree, rank, scale):  # noqa: ARG001
    return tuple(x.new_empty(x.shape) for x in (query, key, value))


def _save(ctx, inputs, output) -> None:
    query, key, value, *ctx.layout = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(query, key, value, *output)


def _backward(ctx, grad, _grad_log_sum):
    if grad is None:
        return (None,) * 7
    grads = causal_attention_backward(grad, *ctx.saved_tensors, *ctx.layout)
    return *grads, None, None, None, None


causal_attention.register_autograd(_backward, setup_context=_save)
