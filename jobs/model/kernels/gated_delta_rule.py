"""The gated delta rule over packed requests, as one operator."""

from collections.abc import Iterator

import torch
from torch import Tensor

from jobs.model.kernels import delta_chunks
from jobs.model.kernels.delta_chunks import CHUNK, Chunks, count_chunks
from jobs.model.kernels.delta_gradients import Arguments, gradients
from jobs.model.kernels.row_blocks import row_blocks


@torch.library.custom_op("peakcast::gated_delta_rule", mutates_args=())
def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, lengths: list[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Write values under keys into a decaying state and read it with queries, request by request.

    ``S_t = e^{g_t} (S_{t-1} - β_t k_t (k_tᵀ S_{t-1})) + β_t k_t v_tᵀ``, ``o_t = S_tᵀ q_t / √dk``,
    with the decay applied before the state is read for the correction; S is 0 at a request's start.

    Parameters
    ----------
    q, k
        (T, heads, dk), of unit length.
    v
        (T, heads, dv).
    g, beta
        (T, heads): log of the decay, fp32, at most 0; and how much is written, in [0, 1].
    lengths
        Tokens of each request; they sum to T.

    Returns
    -------
    tuple
        Output (T, heads, dv); the log-decay summed within chunks of 64, (T, heads) fp32; A
        (T, heads, 64); and four tensors that the kernel needs for a moment: w like k, u like v,
        the states (chunks, heads, dk, dv), and the written values, like v.

    Notes
    -----
    Stands for flash-linear-attention's ``chunk_gated_delta_rule``. Backward keeps q, k, v, the
    summed g, beta and A, as ``ChunkGatedDeltaRuleFunction`` does
    (``fla/ops/gated_delta_rule/chunk.py``); w, u, states and written values are tensors of the
    allocator there too, alive until forward returns and made again in backward. Each is in the
    dtype of k, as there; A is kept so, and used so.
    """
    chunks = Chunks.of(lengths, q.device)
    found = _outputs(k, v, g, lengths)
    for heads in _head_blocks(q, v):
        parts = _read_and_write(*(x[:, heads] for x in (q, k, v, g, beta)), chunks)
        for whole, part in zip(found, parts, strict=True):
            whole[:, heads] = part
    return found


def _head_blocks(q: Tensor, v: Tensor) -> Iterator[slice]:
    """Yield runs of heads: they do not depend on each other, and scratch is that of a run."""
    return row_blocks(q.shape[1], q.shape[0] * max(q.shape[2], v.shape[2]))


def _read_and_write(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, chunks: Chunks
) -> Iterator[Tensor]:
    tokens, scale = q.shape[0], q.shape[-1] ** -0.5
    wide_q, wide_k, wide_v, wide_beta = (chunks.gather(x) for x in (q, k, v, beta))
    summed = chunks.gather(g).cumsum(-1)
    within = delta_chunks.inside(wide_k, wide_v, summed, wide_beta)
    A = delta_chunks.inverse(within.mixing).to(k.dtype)
    wide_A = A.float()
    w, u = wide_A @ within.from_keys, wide_A @ within.from_values
    passed = delta_chunks.pass_states(wide_k, summed, w, u, chunks)
    out = delta_chunks.read_out(wide_q * scale, wide_k, summed, within, passed)
    yield chunks.scatter(out, tokens, q.dtype)
    yield chunks.scatter(summed, tokens, torch.float32)
    yield chunks.scatter(A, tokens, k.dtype)
    yield chunks.scatter(w, tokens, k.dtype)
    yield chunks.scatter(u, tokens, v.dtype)
    yield passed.states.to(k.dtype)
    yield chunks.scatter(passed.written, tokens, v.dtype)


@gated_delta_rule.register_fake
def _(q, k, v, g, beta, lengths):  # noqa: ARG001
    return _outputs(k, v, g, lengths)


def _outputs(k, v, g, lengths):
    A = k.new_empty(*k.shape[:2], CHUNK)
    states = _states(k, v, lengths)
    like_k, like_v = (x.new_empty(x.shape) for x in (k, v))
    return (
        v.new_empty(v.shape),
        g.new_empty(g.shape),
        A,
        like_k,
        like_v,
        states,
        v.new_empty(v.shape),
    )


def _states(k: Tensor, v: Tensor, lengths: list[int]) -> Tensor:
    return k.new_empty(count_chunks(lengths), k.shape[1], k.shape[2], v.shape[2])


@torch.library.custom_op("peakcast::gated_delta_rule_backward", mutates_args=())
def gated_delta_rule_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    summed: Tensor,
    beta: Tensor,
    A: Tensor,
    lengths: list[int],
) -> list[Tensor]:
    """Return the gradients of q, k, v, g and beta, and after them what else the kernels allocate.

    Which is, in ``chunk_gated_delta_rule_bwd``, all alive when the last of them is made: w, u,
    states and written values again; gradients of the states, of the written values and of w; and
    second parts of those of k, g and v. They are returned unset, for the ledger alone to see.
    """
    chunks = Chunks.of(lengths, q.device)
    found = [x.new_empty(x.shape) for x in (q, k, v, summed, beta)]
    for heads in _head_blocks(q, v):
        parts = _differentiate(*(x[:, heads] for x in (grad, q, k, v, summed, beta, A)), chunks)
        for whole, part in zip(found, parts, strict=True):
            whole[:, heads] = part
    return [*found, *_scratch(k, v, summed, lengths)]


def _differentiate(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    summed: Tensor,
    beta: Tensor,
    A: Tensor,
    chunks: Chunks,
) -> Iterator[Tensor]:
    tokens, scale = q.shape[0], q.shape[-1] ** -0.5
    given = Arguments(*[chunks.gather(x) for x in (q, k, v, summed, beta, A)])
    given = given._replace(
        q=given.q * scale,
        # Behind a request's end the sum stands still, so that its last value is the chunk's.
        g=torch.cummin(given.g, -1).values,
    )
    grad_q, grad_k, grad_v, grad_g, grad_beta = gradients(chunks.gather(grad), given, chunks)
    yield chunks.scatter(grad_q * scale, tokens, q.dtype)
    yield chunks.scatter(grad_k, tokens, k.dtype)
    yield chunks.scatter(grad_v, tokens, v.dtype)
    yield chunks.scatter(grad_g.flip(-1).cumsum(-1).flip(-1), tokens, summed.dtype)
    yield chunks.scatter(grad_beta, tokens, beta.dtype)


def _scratch(k: Tensor, v: Tensor, summed: Tensor, lengths: list[int]) -> list[Tensor]:
    states = [_states(k, v, lengths) for _ in range(2)]
    like_k = [k.new_empty(k.shape) for _ in range(3)]  # w, its gradient, a part of that of k
    like_v = [v.new_empty(v.shape) for _ in range(3)]  # u, written values, their gradient
    return [*states, *like_k, *like_v, summed.new_empty(summed.shape)]


@gated_delta_rule_backward.register_fake
def _(grad, q, k, v, summed, beta, A, lengths):  # noqa: ARG001
    grads = [x.new_empty(x.shape) for x in (q, k, v, summed, beta)]
    return [*grads, *_scratch(k, v, summed, lengths)]


def _save(ctx, inputs, output) -> None:
    q, k, v, _, beta, ctx.lengths = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(q, k, v, output[1], beta, output[2])


def _backward(ctx, grad, *_unused):
    if grad is None:
        return (None,) * 6
    found = gated_delta_rule_backward(grad.contiguous(), *ctx.saved_tensors, ctx.lengths)
    return *found[:5], None


gated_delta_rule.register_autograd(_backward, setup_context=_save)
