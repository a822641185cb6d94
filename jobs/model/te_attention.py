"""Core attention by Transformer Engine, over packed requests and the context-parallel ring."""

from typing import Any

import torch
from megatron.core.extensions.transformer_engine import TEDotProductAttention
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.enums import AttnMaskType
from torch import Tensor

from jobs.layout import RequestLayout


class TEPackedAttention(TEDotProductAttention):
    """The ``core_attention`` of Megatron's SelfAttention, for `RequestLayout`.

    Each rank sends its keys and values around the ring of its context-parallel group (``p2p``: of
    Transformer Engine's ways, gathering takes no packed requests). Queries, keys and values come as
    Megatron's (T, 1, heads, channels), rotated by each token's own position, so that Megatron's
    packed rotary, which would want whole requests, has no part in it.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,  # noqa: ARG002 - causal within each request
        *,
        packed_seq_params: RequestLayout,
        **_: Any,
    ) -> Tensor:
        """Attend local queries (T, 1, heads, channels); return (T, 1, heads·channels)."""
        if not query.numel():  # the whole group is without tokens: no ring, and no kernel for it
            return query.flatten(2)
        out = super().forward(
            *(x.squeeze(1) for x in (query, key, value)),
            None,
            AttnMaskType.padding_causal,
            packed_seq_params=packed(packed_seq_params, query.device),
        )
        return out.view(query.shape[0], 1, -1)


def packed(layout: RequestLayout, device: torch.device) -> PackedSeqParams:
    """Return where requests begin over all ranks, as Transformer Engine is told.

    It cuts each request into ``2·degree`` chunks, of which a rank holds one from the front and one
    from the back, as `RequestLayout` does. Padding is part of a request; told where padded ones
    begin apart, it would compare the two in every layer and wait for the device.
    """
    starts = [0]
    for length in layout.lengths:
        starts.append(starts[-1] + length)
    cu_seqlens = torch.tensor(starts, dtype=torch.int32).to(device)
    longest = max(layout.lengths)
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_kv=cu_seqlens,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
    )
