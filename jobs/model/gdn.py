"""Gated DeltaNet layers: Megatron's parameters, over packed requests and context parallelism."""

from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.ssm.gated_delta_net import GatedDeltaNet, GatedDeltaNetSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from jobs.layout import RequestLayout
from jobs.model import adapters
from jobs.model.gdn_core import DeltaCore, Taps
from jobs.model.norm import RMSNorm


class PackedGatedDeltaNet(GatedDeltaNet):
    """Megatron's GatedDeltaNet that also takes packed requests and splits heads over cp.

    Parameters and their layout are Megatron's (its constructor makes them); its forward, which
    refuses packed requests and context parallelism, is replaced: projection, `DeltaCore`,
    projection.
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
        self.core = DeltaCore(
            *(self.num_key_heads, self.key_head_dim, self.num_value_heads, self.value_head_dim),
            epsilon=config.layernorm_epsilon,
            group=pg_collection.cp,
        )

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
        projected, _ = self.in_proj(hidden_states)
        taps = Taps(self._conv_weight(layout), self.A_log, self.dt_bias, self.out_norm.weight)
        out = self.core(projected.squeeze(1), taps, layout)
        return self.out_proj(out.unsqueeze(1))

    def _conv_weight(self, layout: RequestLayout) -> Tensor:
        """Return the convolution's weight (channels, width) for this rank's heads."""
        weight = self.conv1d.weight.squeeze(1)
        if layout.degree == 1:
            return weight
        sections = weight.split([self.qk_dim, self.qk_dim, self.v_dim])
        return torch.cat([section.chunk(layout.degree)[layout.rank] for section in sections])


def gdn_spec(lora_rank: int = 0) -> ModuleSpec:
    """Return the specification of the mixer, for the place of a layer's self-attention.

    Its projections have adapters of ``lora_rank``; 0: none.
    """
    return ModuleSpec(
        module=PackedGatedDeltaNet,
        submodules=GatedDeltaNetSubmodules(
            in_proj=adapters.column(lora_rank),
            out_norm=RMSNorm,
            out_proj=adapters.row(lora_rank),
        ),
    )
