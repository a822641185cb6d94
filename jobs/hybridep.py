"""CPU reference of DeepEP's ``HybridEPBuffer`` over gloo, importable by Megatron as ``deep_ep``.

One NVLink domain of R ranks (N = 1). Tokens go once to each rank that holds one of their experts,
through persistent buffers, and are permuted there. What is real: the persistent buffers of DeepEP
(``csrc/hybrid_ep``), with its sizes, held outside the tensors that a dispatch mode sees; the
tensors that DeepEP returns inside PyTorch, with their shapes and dtypes; values and gradients. What
is not: speed, FP8 and more than one domain.
"""

import importlib.machinery
import math
import sys
import types

import torch
import torch.distributed as dist
from torch import Tensor

from jobs.hybridep_handle import CHUNK, Handle, lay_out, outside_pytorch
from planner.units import align_up

LEAST_TOKENS = 512


def capacity_for(tokens: int, ranks: int) -> int:
    """Return the tokens per rank for which buffers are made when ``tokens`` must fit.

    A multiple of 4/gcd(4, ranks), at least 512, then a multiple of 64. Written apart from
    `planner.hybridep` on purpose: what the planner says of growth is compared with these buffers.
    """
    return align_up(max(align_up(tokens, 4 // math.gcd(4, ranks)), LEAST_TOKENS), CHUNK)


def buffer_bytes(tokens: int, ranks: int, hidden: int, experts: int, itemsize: int) -> int:
    """Return the bytes of the persistent buffers of one rank that can take ``tokens``."""
    rows = capacity_for(tokens, ranks) * ranks
    return rows * (hidden * itemsize + experts * 4 + hidden // 128 * 4 + experts)


class HybridEPBuffer:
    """Persistent buffers of one process, and the dispatch and combine through them.

    Parameters are those of DeepEP's constructor as Megatron calls it. Buffers hold 16-bit tokens as
    DeepEP's do; tokens of 4 bytes make them grow. A call with more tokens than fit, on any rank of
    the group, grows them on every rank: the old ones are released first. They never shrink.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        hidden_dim: int,
        max_num_of_tokens_per_rank: int,
        num_local_experts: int,
        use_fp8: bool = False,
        num_sms_dispatch_api: int | None = None,  # noqa: ARG002 - DeepEP's signature
        num_sms_combine_api: int | None = None,  # noqa: ARG002 - DeepEP's signature
    ) -> None:
        if use_fp8:
            raise NotImplementedError("the HybridEP reference has no FP8 dispatch")
        self.group = group
        self.ranks: int = group.size()
        self.rank: int = group.rank()
        self.hidden = hidden_dim
        self.local_experts = num_local_experts
        self.capacity = 0
        self._itemsize = 2
        self._token: Tensor | None = None
        self._prob: Tensor | None = None
        self._scaling_factor: Tensor | None = None
        self._routing_map: Tensor | None = None
        self._update(max_num_of_tokens_per_rank, self._itemsize)

    @property
    def held_bytes(self) -> int:
        """Bytes that the persistent buffers hold."""
        held = (self._token, self._prob, self._scaling_factor, self._routing_map)
        return sum(x.untyped_storage().nbytes() for x in held if x is not None)

    def _update(self, tokens: int, itemsize: int) -> None:
        if tokens <= self.capacity and itemsize <= self._itemsize:
            return
        self.capacity = max(self.capacity, capacity_for(tokens, self.ranks))
        self._itemsize = max(self._itemsize, itemsize)
        self._allocate()

    def _allocate(self) -> None:
        """Make the buffers for `capacity`, once the old ones are released."""
        rows, experts = self.capacity * self.ranks, self.local_experts * self.ranks
        self._token = self._prob = self._scaling_factor = self._routing_map = None
        with outside_pytorch():
            # Dispatch and combine share token and probability buffers (DeepEP's default). The last
            # two lie idle without FP8 and with PyTorch's own all-gather, and are held all the same.
            self._token = torch.zeros(rows * self.hidden * self._itemsize, dtype=torch.uint8)
            self._prob = torch.zeros(rows * experts, dtype=torch.float32)
            self._scaling_factor = torch.zeros(rows * (self.hidden // 128), dtype=torch.float32)
            self._routing_map = torch.zeros(rows * experts, dtype=torch.uint8)

    def _token_rows(self, rows: int, dtype: torch.dtype) -> Tensor:
        assert self._token is not None
        size = rows * self.hidden * dtype.itemsize
        return self._token[:size].view(dtype).view(rows, self.hidden)

    def _prob_rows(self, rows: int) -> Tensor:
        assert self._prob is not None
        return self._prob[: rows * self.local_experts].view(rows, self.local_experts)

    def _exchange(self, out: Tensor, rows: Tensor, arrive: list[int], leave: list[int]) -> None:
        dist.all_to_all_single(out, rows.contiguous(), arrive, leave, group=self.group)

    def dispatch_with_permute(
        self,
        hidden: Tensor,
        routing_map: Tensor | None = None,
        probs: Tensor | None = None,
        scaling_factor: Tensor | None = None,
        num_of_experts_per_rank: int | None = None,  # noqa: ARG002 - DeepEP's signature
        pad_multiple: int | None = None,
        num_permuted_tokens: int | Tensor | None = None,  # noqa: ARG002 - the rows are counted
        non_blocking: bool = False,  # noqa: ARG002 - a CPU call has returned when it is done
        handle: Handle | None = None,
    ) -> tuple[Tensor, Tensor | None, None, Tensor, Handle]:
        """Send tokens (n, H) to the ranks of their experts and permute them there.

        Returns
        -------
        tuple
            Rows (R, H) sorted by local expert, their probabilities (R,) where ``probs`` (n, E) is
            given, no scaling factors, rows of each local expert, and the handle.
        """
        if scaling_factor is not None or pad_multiple:
            raise NotImplementedError("the HybridEP reference has no FP8 scales and no padding")
        if handle is None:
            assert routing_map is not None
            handle = self._prepare(routing_map, hidden.element_size())
        out = hidden.new_empty(handle.rows, self.hidden)
        out_probs = None if probs is None else probs.new_empty(handle.rows)
        self._deliver(out, out_probs, hidden, probs, handle)
        return out, out_probs, None, handle.tokens_per_expert, handle

    def _deliver(
        self,
        out: Tensor,
        out_probs: Tensor | None,
        hidden: Tensor,
        probs: Tensor | None,
        handle: Handle,
    ) -> None:
        """Fill rows and their probabilities with what the ranks send each other."""
        with outside_pytorch():
            order = handle.send_order()
            dense, expert, row = handle.pairs()
            received = self._token_rows(sum(handle.received), hidden.dtype)
            self._exchange(received, hidden[order], handle.received, handle.sent)
            out[row] = received[dense]
            if probs is not None and out_probs is not None:
                received = self._prob_rows(sum(handle.received))
                blocks = probs.view(handle.tokens, self.ranks, self.local_experts)
                target = torch.arange(self.ranks).repeat_interleave(torch.tensor(handle.sent))
                self._exchange(received, blocks[order, target], handle.received, handle.sent)
                out_probs[row] = received[dense, expert]

    def combine_with_unpermute(
        self,
        hidden: Tensor,
        probs: Tensor | None = None,
        handle: Handle | None = None,
        pad_multiple: int | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Sum permuted rows (R, H) per token, send them back and sum them there, in fp32.

        Returns
        -------
        tuple
            Tokens (n, H), and (n, E) of ``probs`` where these are given.
        """
        if pad_multiple or handle is None:
            raise NotImplementedError("combine needs the handle of its dispatch, and no padding")
        out = hidden.new_empty(handle.tokens, self.hidden)
        experts = self.ranks * self.local_experts
        out_probs = None if probs is None else probs.new_empty(handle.tokens, experts)
        self._give_back(out, out_probs, hidden, probs, handle)
        return out, out_probs

    def _give_back(
        self,
        out: Tensor,
        out_probs: Tensor | None,
        hidden: Tensor,
        probs: Tensor | None,
        handle: Handle,
    ) -> None:
        """Fill tokens and their probabilities with the sums that come back."""
        with outside_pytorch():
            order = handle.send_order()
            dense, expert, row = handle.pairs()
            rows, back = sum(handle.received), sum(handle.sent)
            total = torch.zeros(rows, self.hidden).index_add_(0, dense, hidden[row].float())
            staged = self._token_rows(rows, hidden.dtype).copy_(total)
            returned = torch.empty(back, self.hidden, dtype=hidden.dtype)
            self._exchange(returned, staged, handle.sent, handle.received)
            total = torch.zeros(handle.tokens, self.hidden).index_add_(0, order, returned.float())
            out.copy_(total)
            if probs is not None and out_probs is not None:
                staged = self._prob_rows(rows).zero_()
                staged[dense, expert] = probs[row]
                returned = torch.empty(back, self.local_experts, dtype=probs.dtype)
                self._exchange(returned, staged, handle.sent, handle.received)
                target = torch.arange(self.ranks).repeat_interleave(torch.tensor(handle.sent))
                blocks = out_probs.zero_().view(handle.tokens, self.ranks, self.local_experts)
                blocks[order, target] = returned

    def _prepare(self, routing_map: Tensor, itemsize: int) -> Handle:
        """Gather the routing maps of the group, grow the buffers, and lay out where rows go."""
        tokens, experts = routing_map.shape
        with outside_pytorch():
            counts = torch.empty(self.ranks, dtype=torch.int64)
            dist.all_gather_single(counts, torch.tensor([tokens]), group=self.group)
        sizes: list[int] = counts.tolist()
        most = max(sizes)
        self._update(most, itemsize)
        gathered = routing_map.new_empty(most * self.ranks, experts, dtype=torch.uint8)
        with outside_pytorch():
            mine = torch.zeros(most, experts, dtype=torch.uint8)
            mine[:tokens] = routing_map
            dist.all_gather_single(gathered, mine, group=self.group)
            by_rank = gathered.view(self.ranks, most, self.ranks, self.local_experts).bool()
        return lay_out(by_rank, self.rank, tokens)


def install() -> None:
    """Make `HybridEPBuffer` importable as ``deep_ep``; call before Megatron is imported.

    Raises
    ------
    RuntimeError
        When Megatron has been imported already, or another ``deep_ep`` has.
    """
    known = sys.modules.get("deep_ep")
    if known is not None:
        if getattr(known, "HybridEPBuffer", None) is HybridEPBuffer:
            return
        raise RuntimeError("another deep_ep is imported; the CPU reference cannot take its place")
    if "megatron.core.transformer.moe.fused_a2a" in sys.modules:
        raise RuntimeError("install the HybridEP reference before Megatron is imported")
    module = types.ModuleType("deep_ep", __doc__)
    module.__spec__ = importlib.machinery.ModuleSpec("deep_ep", None)
    module.HybridEPBuffer = HybridEPBuffer  # type: ignore[attr-defined]
    sys.modules["deep_ep"] = module


def current_buffer() -> HybridEPBuffer | None:
    """Return the buffer of this process: Megatron's one global, shared by all layers."""
    from megatron.core.transformer.moe import fused_a2a

    return fused_a2a._hybrid_ep_buffer


def held_bytes() -> int:
    """Bytes that this process's buffers hold; 0 before the first dispatch."""
    buffer = current_buffer()
    return 0 if buffer is None else buffer.held_bytes


def held_tokens() -> int:
    """Tokens per rank that this process's buffers can take; 0 before the first dispatch."""
    buffer = current_buffer()
    return 0 if buffer is None else buffer.capacity
