"""Where the rows of one HybridEP dispatch go: the metadata that DeepEP returns as its handle."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from planner.units import align_up, ceil_div

CHUNK = 64
"""Tokens per chunk of DeepEP's kernels; capacities are multiples of it."""

outside_pytorch: Callable[[], AbstractContextManager[Any]] = _disable_current_modes
"""Inside it no dispatch mode sees an allocation: that memory is DeepEP's own, not PyTorch's."""


@dataclass(frozen=True)
class Handle:
    """What a dispatch leaves for its combine and for both backwards.

    Parameters
    ----------
    sparse_to_dense
        (n, R) int32: where each local token lies in each rank's dense rows, -1 if it is not sent.
    rdma_to_attention
        (n aligned to 16,) bool: tokens that came over the network; all of them in one domain.
    local_expert_map
        (n·R, local experts) bool: experts of each dense row.
    chunk_layout
        (ceil(n/64), R) int32: tokens of each chunk that go to each rank.
    dense_to_expert
        (n·R, local experts) int32: the permuted row of each dense row and expert, -1 where none.
    tokens, sent, received
        Local tokens; dense rows sent to and received from each rank. ``n`` above is the largest
        token count of the group.
    """

    sparse_to_dense: Tensor
    rdma_to_attention: Tensor
    local_expert_map: Tensor
    chunk_layout: Tensor
    dense_to_expert: Tensor
    tokens_per_expert: Tensor
    tokens: int
    rows: int
    sent: list[int]
    received: list[int]

    def send_order(self) -> Tensor:
        """Local tokens in the order in which they are sent: by rank, then by token."""
        return (self.sparse_to_dense[: self.tokens] >= 0).t().nonzero(as_tuple=True)[1]

    def pairs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Dense row, local expert and permuted row of each routed pair, by permuted row."""
        dense_to_expert = self.dense_to_expert[: sum(self.received)]
        expert, dense = (dense_to_expert.t() >= 0).nonzero(as_tuple=True)
        return dense, expert, dense_to_expert[dense, expert].long()


def empty_handle(
    like: Tensor,
    *,
    most: int,
    ranks: int,
    local_experts: int,
    tokens: int,
    rows: int,
    sent: list[int],
    received: list[int],
) -> Handle:
    """Allocate a handle's tensors, unset; ``most`` is the largest token count of the group."""
    new, slots = like.new_empty, most * ranks
    return Handle(
        sparse_to_dense=new(most, ranks, dtype=torch.int32),
        rdma_to_attention=new(align_up(most, 16), dtype=torch.bool),
        local_expert_map=new(slots, local_experts, dtype=torch.bool),
        chunk_layout=new(ceil_div(most, CHUNK), ranks, dtype=torch.int32),
        dense_to_expert=new(slots, local_experts, dtype=torch.int32),
        tokens_per_expert=new(local_experts, dtype=torch.int64),
        tokens=tokens,
        rows=rows,
        sent=sent,
        received=received,
    )


def lay_out(routing: Tensor, rank: int, tokens: int) -> Handle:
    """Lay out the rows of a dispatch.

    Parameters
    ----------
    routing
        (source rank, token, target rank, local expert) bool, tokens padded to the largest count.
    rank, tokens
        This rank, and its own tokens.
    """
    ranks, most, _, local_experts = routing.shape
    with outside_pytorch():
        sent_to = routing.any(-1)  # (source rank, token, target rank)
        traffic = sent_to.sum(1)  # (source rank, target rank)
        here = routing[:, :, rank].flatten(0, 1)
        here = here[here.any(1)]  # (dense rows, local experts)
        per_expert = here.sum(0)
        rows = int(per_expert.sum())
    handle = empty_handle(
        routing,
        most=most,
        ranks=ranks,
        local_experts=local_experts,
        tokens=tokens,
        rows=rows,
        sent=traffic[rank].tolist(),
        received=traffic[:, rank].tolist(),
    )
    with outside_pytorch():
        before = traffic.cumsum(0)[rank] - traffic[rank]  # rows of earlier sources
        place = sent_to[rank].cumsum(0) - 1 + before
        handle.sparse_to_dense.copy_(torch.where(sent_to[rank], place, -1))
        handle.rdma_to_attention.zero_()[:tokens] = True
        handle.local_expert_map.zero_()[: here.shape[0]] = here
        handle.chunk_layout.copy_(_per_chunk(sent_to[rank]))
        first = per_expert.cumsum(0) - per_expert
        row = here.cumsum(0) - 1 + first
        handle.dense_to_expert.fill_(-1)[: here.shape[0]] = torch.where(here, row, -1).int()
        handle.tokens_per_expert.copy_(per_expert)
    return handle


def _per_chunk(sent: Tensor) -> Tensor:
    """Count the tokens of each chunk that go to each rank."""
    tokens, ranks = sent.shape
    padded = torch.zeros(ceil_div(tokens, CHUNK) * CHUNK, ranks, dtype=torch.int32)
    padded[:tokens] = sent
    return padded.view(-1, CHUNK, ranks).sum(1)
