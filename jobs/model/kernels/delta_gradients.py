"""Arithmetic of the chunked gated delta rule's backward, fp32.

Shapes are (chunks, heads, 64, …), as `jobs.model.kernels.delta_chunks` lays requests out. D is the
decay between two positions, G the log-decay summed from a chunk's start, S the state there::

    w = A (β e^G k),  u = A (β v),  A = (1 + L)⁻¹,  L = strictly lower part of β k kᵀ D
    written = u - w S,  o = (q e^G) S + (q kᵀ D) written
    next S = e^{G_last} S + (k e^{G_last - G})ᵀ written
"""

from typing import NamedTuple

from torch import Tensor

from jobs.model.kernels.delta_chunks import Chunks, Inside, Passed, inside, pass_states


class Arguments(NamedTuple):
    """What forward was given, q scaled; g is the summed log-decay."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    A: Tensor

    @property
    def rise(self) -> Tensor:
        """Decay from the chunk's start to each position."""
        return self.g.exp().unsqueeze(-1)

    @property
    def fall(self) -> Tensor:
        """Decay from each position to the chunk's end."""
        return (self.g[..., -1:] - self.g).exp().unsqueeze(-1)

    @property
    def whole(self) -> Tensor:
        """Decay over the chunk."""
        return self.g[..., -1, None, None].exp()


def gradients(grad: Tensor, given: Arguments, chunks: Chunks) -> tuple[Tensor, ...]:
    """Return the gradients of scaled q, k, v, summed g and beta for that of the output."""
    within = inside(given.k, given.v, given.g, given.beta)
    w = given.A @ within.from_keys
    passed = pass_states(given.k, given.g, w, given.A @ within.from_values, chunks)
    grad_states, grad_written = _back_through_states(grad, given, within, w, chunks)
    grad_q, grad_k, grad_g = _of_reading(grad, given, within, passed, grad_states)
    grad_w = -grad_written @ passed.states.transpose(-1, -2)
    more_k, grad_v, more_g, grad_beta = _of_writing(grad_w, grad_written, given, within)
    return grad_q, grad_k + more_k, grad_v, grad_g + more_g, grad_beta


def _back_through_states(
    grad: Tensor, given: Arguments, within: Inside, w: Tensor, chunks: Chunks
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the state behind each chunk and of what it writes."""
    q, k = given.q, given.k
    near = (q @ k.transpose(-1, -2)) * within.decay
    written = near.transpose(-1, -2) @ grad
    states = k.new_zeros(*k.shape[:2], k.shape[-1], grad.shape[-1])
    kept, read = k * given.fall, (q * given.rise).transpose(-1, -2) @ grad
    behind = states[:0]
    for span in reversed(chunks.spans()):
        states[span][: len(behind)] = behind  # a request that ends here has none behind
        written[span] += kept[span] @ states[span]
        behind = states[span] * given.whole[span] + read[span]
        behind = behind - w[span].transpose(-1, -2) @ written[span]
    return states, written


def _of_reading(
    grad: Tensor, given: Arguments, within: Inside, passed: Passed, grad_states: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and g through the output and the next state."""
    q, k, _, g, _, _ = given
    near = (grad @ passed.written.transpose(-1, -2)) * within.decay
    far = grad @ passed.states.transpose(-1, -2)
    kept = (passed.written @ grad_states.transpose(-1, -2)) * given.fall
    grad_q = near @ k + far * given.rise
    grad_k = near.transpose(-1, -2) @ q + kept
    paired, to_end = near * (q @ k.transpose(-1, -2)), (kept * k).sum(-1)
    grad_g = (far * q * given.rise).sum(-1) + paired.sum(-1) - paired.sum(-2) - to_end
    over = (passed.states * grad_states).sum((-1, -2)) * g[..., -1].exp()
    grad_g[..., -1] += to_end.sum(-1) + over
    return grad_q, grad_k, grad_g


def _of_writing(
    grad_w: Tensor, grad_u: Tensor, given: Arguments, within: Inside
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of k, v, g and beta through w and u, and through A."""
    _, k, v, _, beta, A = given
    back, strength = A.transpose(-1, -2), beta.unsqueeze(-1)
    to_keys, to_values = back @ grad_w, back @ grad_u
    grad_A = grad_w @ within.from_keys.transpose(-1, -2)
    grad_A = grad_A + grad_u @ within.from_values.transpose(-1, -2)
    grad_mixing = -(back @ grad_A @ back).tril(-1)
    pair = grad_mixing * within.decay
    both = strength * pair
    grad_k = to_keys * strength * given.rise + (both + both.transpose(-1, -2)) @ k
    grad_beta = (to_keys * given.rise * k).sum(-1) + (to_values * v).sum(-1)
    grad_beta = grad_beta + (pair * (k @ k.transpose(-1, -2))).sum(-1)
    mixed = grad_mixing * within.mixing
    grad_g = (to_keys * within.from_keys).sum(-1) + mixed.sum(-1) - mixed.sum(-2)
    return grad_k, to_values * strength, grad_g, grad_beta
