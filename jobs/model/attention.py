"""Core attention of packed requests: keys and values gathered over the context-parallel group."""

from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from jobs.layout import RequestLayout
from jobs.model.kernels.causal_attention import causal_attention
from jobs.model.kernels.output_gate import output_gate


class PackedAttention(torch.nn.Module):
    """The ``core_attention`` of Megatron's SelfAttention, for `RequestLayout`.

    Each rank sees the keys and values of all; in backward their gradients are summed and scattered
    back (Megatron's autograd-aware gather). Arguments are those that Megatron builds it with.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,  # noqa: ARG002 - Megatron's signature
        attn_mask_type: Any,  # noqa: ARG002 - causal within each request
        attention_type: str,  # noqa: ARG002 - self-attention
        cp_comm_type: str | None,  # noqa: ARG002 - always all-gather
        softmax_scale: float | None,
        pg_collection: ProcessGroupCollection,
    ) -> None:
        super().__init__()
        self.group = pg_collection.cp
        channels = config.kv_channels
        assert channels is not None
        self.scale = channels**-0.5 if softmax_scale is None else softmax_scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,  # noqa: ARG002 - no mask exists
        *,
        packed_seq_params: RequestLayout,
        **_: Any,
    ) -> Tensor:
        """Attend local queries (T, 1, heads, channels); return (T, 1, heads·channels)."""
        layout = packed_seq_params
        if layout.degree > 1:
            key, value = (
                gather_from_sequence_parallel_region(
                    x, tensor_parallel_output_grad=True, group=self.group
                )
                for x in (key, value)
            )
        lengths = list(layout.lengths)
        out, _ = causal_attention(
            query, key, value, lengths, layout.degree, layout.rank, self.scale
        )
        return out


class SelfAttentionOfAnyLength(SelfAttention):
    """Megatron's SelfAttention, that also runs on a rank without tokens; its output gate fused.

    Without tokens Megatron's ``reshape(…, -1, channels)`` is ambiguous. All ranks of such a
    replica's context-parallel group are without tokens, and must still take part in collectives.
    """

    def get_query_key_value_tensors(
        self, hidden_states: Tensor, *args: Any, output_gate: bool = False, **kwargs: Any
    ) -> tuple[Tensor, ...]:
        """Return query, key, value and, with ``output_gate``, gate: (T, 1, heads, channels)."""
        if hidden_states.numel():
            return super().get_query_key_value_tensors(
                hidden_states, *args, output_gate=output_gate, **kwargs
            )
        mixed, _ = self.linear_qkv(hidden_states)
        channels = self.hidden_size_per_attention_head
        query = self.num_attention_heads_per_partition * channels
        key = self.num_query_groups_per_partition * channels
        widths = (query, key, key, query) if output_gate else (query, key, key)
        return tuple(
            part.view(*part.shape[:2], part.shape[2] // channels, channels)
            for part in mixed.split(widths, dim=2)
        )

    def _apply_output_gate(self, x: Tensor, gate: Tensor) -> Tensor:
        """Return the gated output (T, 1, heads·channels), by the fused operator."""
        return output_gate(x.view(gate.shape), gate).view(x.shape)
