"""Gated DeltaNet layers: Megatron's parameters, over packed requests and context parallelism."""

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.ssm.gated_delta_net import GatedDeltaNet, GatedDeltaNetSubmodules
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn.functional import softplus

from jobs.layout import RequestLayout
from jobs.model.gdn_exchange import to_heads, to_tokens
from jobs.model.kernels.causal_conv import causal_conv
from jobs.model.kernels.gated_delta_rule import gated_delta_rule
from jobs.model.kernels.gated_norm import gated_norm, unit_norm
from jobs.model.norm import RMSNorm


class PackedGatedDeltaNet(GatedDeltaNet):
    """Megatron's GatedDeltaNet that also takes packed requests and splits heads over cp.

    Parameters and their layout are Megatron's (its constructor makes them); its forward, which
    refuses packed requests and context parallelism, is replaced. Under context parallelism every
    rank gives its tokens away for whole requests of its share of the heads, and back after the
    norm, as later releases of Megatron do.
    """

    def __init__(
        self,
        config: TransformerConfig,
        submodules: GatedDeltaNetSubmodules,
        layer_number: int,
        pg_collection: ProcessGroupCollection,
        cp_comm_type: str | None = None,  # noqa: ARG002 - given to attention of either kind
    ) -> None:
        super().__init__(config, submodules, layer_number, pg_collection=pg_collection)
        self.group = pg_collection.cp
        keys, values, heads = self.qk_dim, self.v_dim, self.num_value_heads
        self.sections = [keys, keys, values, values, heads, heads]  # q, k, v, gate, beta, alpha

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None,  # noqa: ARG002 - no mask exists
        *,
        packed_seq_params: RequestLayout,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Mix local tokens (T, 1, H) with those before them in their request; and no bias."""
        layout = packed_seq_params
        lengths, degree = list(layout.lengths), layout.degree
        projected = self.in_proj(hidden_states)[0].squeeze(1)
        if degree > 1:
            projected = to_heads(projected, self.sections, lengths, self.group)
        mixed, gate, beta, alpha = self._split(projected, degree)
        del projected  # nothing keeps it: each part has been copied
        q, k, v = self._heads(causal_conv(mixed, self._conv_weight(layout), lengths), degree)
        del mixed
        log_decay, beta = self._log_decay(alpha, layout), beta.sigmoid()
        out = gated_delta_rule(q, k, v, log_decay, beta, lengths)[0]
        del q, k, v
        out, _ = gated_norm(out, gate, self.out_norm.weight, self.out_norm.eps)
        out = out.flatten(1)
        if degree > 1:
            out = to_tokens(out, [self.v_dim], lengths, self.group)
        return self.out_proj(out.unsqueeze(1))

    def _split(self, projected: Tensor, degree: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return copies of what the convolution takes, of the gate, beta and alpha."""
        keys, values, heads = (
            width // degree for width in (self.qk_dim, self.v_dim, self.num_value_heads)
        )
        parts = projected.split([2 * keys + values, values, heads, heads], -1)
        mixed, gate, beta, alpha = (part.contiguous() for part in parts)
        return mixed, gate.view(len(gate), heads, self.value_head_dim), beta, alpha

    def _heads(self, mixed: Tensor, degree: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys, of unit length and one for each value head, and values."""
        keys, values = self.qk_dim // degree, self.v_dim // degree
        q, k, v = mixed.split([keys, keys, values], -1)
        repeats = self.num_value_heads // self.num_key_heads
        by_head = (len(mixed), keys // self.key_head_dim, self.key_head_dim)
        q, k = (unit_norm(x.contiguous().view(by_head))[0] for x in (q, k))
        if repeats > 1:
            q, k = (x.repeat_interleave(repeats, dim=1) for x in (q, k))
        v = v.contiguous().view(len(mixed), values // self.value_head_dim, self.value_head_dim)
        return q, k, v

    def _log_decay(self, alpha: Tensor, layout: RequestLayout) -> Tensor:
        """Return the log of each step's decay, (T, heads) fp32, never above 0."""
        rate, bias = (_share(p, layout) for p in (self.A_log, self.dt_bias))
        return -rate.exp() * softplus(alpha.float() + bias)

    def _conv_weight(self, layout: RequestLayout) -> Tensor:
        """Return the taps (channels, width) of this rank's heads."""
        taps = self.conv1d.weight.squeeze(1)
        if layout.degree == 1:
            return taps
        parts: Sequence[Tensor] = taps.split([self.qk_dim, self.qk_dim, self.v_dim])
        return torch.cat([_share(part, layout) for part in parts])


def _share(whole: Tensor, layout: RequestLayout) -> Tensor:
    """Return a rank's heads of a tensor that has the heads first."""
    return whole.chunk(layout.degree)[layout.rank]


def gdn_spec() -> ModuleSpec:
    """Return the specification of the mixer, for the place of a layer's self-attention."""
    return ModuleSpec(
        module=PackedGatedDeltaNet,
        submodules=GatedDeltaNetSubmodules(
            in_proj=ColumnParallelLinear, out_norm=RMSNorm, out_proj=RowParallelLinear
        ),
    )
