"""Arithmetic of the chunked gated delta rule, fp32: packed requests as blocks of 64 positions."""

from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 64
"""Positions of a chunk in flash-linear-attention's kernels."""


class Chunks(NamedTuple):
    """Where the chunks of packed requests lie: first chunks of all requests, then second ones, ….

    Parameters
    ----------
    rows
        (chunks, 64) row of each position; one past the last row beyond a request's end.
    alive
        For each place, how many requests have a chunk there: the longest come first, so that they
        are always the first so many.
    """

    rows: Tensor
    alive: list[int]

    @classmethod
    def of(cls, lengths: list[int], device: torch.device) -> "Chunks":
        """Cut requests that lie one after another, rows counted on ``device``."""
        starts = [0, *accumulate(lengths)]
        longest_first = sorted(range(len(lengths)), key=lambda index: -lengths[index])
        rows, alive = [], []
        for position in range(0, max(lengths, default=0), CHUNK):
            here = [index for index in longest_first if lengths[index] > position]
            alive.append(len(here))
            for index in here:
                chunk = torch.arange(CHUNK, device="cpu") + starts[index] + position
                chunk[lengths[index] - position :] = starts[-1]
                rows.append(chunk)
        whole = (
            torch.stack(rows) if rows else torch.empty(0, CHUNK, dtype=torch.int64, device="cpu")
        )
        return cls(whole.to(device), alive)

    def gather(self, x: Tensor) -> Tensor:
        """(T, heads, …) to (chunks, heads, 64, …) in fp32, zeros beyond the ends."""
        padded = torch.cat((x.float(), x.new_zeros(1, *x.shape[1:], dtype=torch.float32)))
        return padded[self.rows].transpose(1, 2)

    def scatter(self, x: Tensor, tokens: int, dtype: torch.dtype) -> Tensor:
        """(chunks, heads, 64, …) back to (T, heads, …)."""
        x = x.transpose(1, 2)
        out = x.new_empty(tokens + 1, *x.shape[2:])
        out[self.rows] = x
        return out[:tokens].to(dtype).contiguous()

    def spans(self) -> list[slice]:
        """Return the chunks at each place, first place first."""
        ends = list(accumulate(self.alive))
        return [slice(end - count, end) for end, count in zip(ends, self.alive, strict=True)]


def count_chunks(lengths: list[int]) -> int:
    """Return how many chunks requests have."""
    return sum(-(-length // CHUNK) for length in lengths)


class Inside(NamedTuple):
    """What a chunk's positions do to each other, (chunks, heads, 64, …).

    ``decay`` is exp(g_i - g_j) for j ≤ i, ``mixing`` the strictly lower matrix L of which
    ``(1 + L)⁻¹`` is A, ``from_keys`` and ``from_values`` what A multiplies.
    """

    decay: Tensor
    mixing: Tensor
    from_keys: Tensor
    from_values: Tensor


def inside(k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Inside:
    """Work out a chunk's inside from keys, values, summed log-decay and write strength."""
    decay = (g.unsqueeze(-1) - g.unsqueeze(-2)).tril().exp().tril()
    strength = beta.unsqueeze(-1)
    mixing = (strength * (k @ k.transpose(-1, -2)) * decay).tril(-1)
    return Inside(decay, mixing, strength * g.exp().unsqueeze(-1) * k, strength * v)


def inverse(mixing: Tensor) -> Tensor:
    """Return (1 + L)⁻¹ for strictly lower L."""
    eye = torch.eye(CHUNK, device=mixing.device).expand_as(mixing)
    return torch.linalg.solve_triangular(mixing, eye, upper=False, unitriangular=True)


class Passed(NamedTuple):
    """What chunks hand on: the state at each chunk's start, and the values that it writes."""

    states: Tensor
    written: Tensor


def pass_states(k: Tensor, g: Tensor, w: Tensor, u: Tensor, chunks: Chunks) -> Passed:
    """Go through the chunks in order of position, the state of each request beginning at zero."""
    states = k.new_zeros(*k.shape[:2], k.shape[-1], u.shape[-1])
    written = torch.empty_like(u)
    last = g[..., -1:]
    kept = k * (last - g).exp().unsqueeze(-1)
    state = states[: chunks.alive[0]] if chunks.alive else states
    for span, count in zip(chunks.spans(), chunks.alive, strict=True):
        states[span] = state[:count]
        written[span] = u[span] - w[span] @ states[span]
        state = states[span] * last[span].exp().unsqueeze(-1)
        state = state + kept[span].transpose(-1, -2) @ written[span]
    return Passed(states, written)


def read_out(q: Tensor, k: Tensor, g: Tensor, within: Inside, passed: Passed) -> Tensor:
    """Return what the (scaled) queries read: of the state at the start, and of their chunk."""
    near = (q @ k.transpose(-1, -2)) * within.decay
    return (q * g.exp().unsqueeze(-1)) @ passed.states + near @ passed.written
