"""Routed experts by Transformer Engine: Megatron's TEGroupedMLP, adapters beside frozen bases.

Bases are Transformer Engine's grouped linear layers, one parameter ``weight{i}`` an expert;
`jobs.model.names` gives them the names that weights are drawn and loaded by.
"""

from typing import Any

import torch
from megatron.core.extensions.transformer_engine import (
    TEColumnParallelGroupedLinear,
    TERowParallelGroupedLinear,
)
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe.experts import TEGroupedMLP
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from jobs.model.experts import expert_parameter
from jobs.model.kernels.grouped_matmul import grouped_matmul


class Adapted:
    """Mixed into one of Megatron's grouped linear layers: an adapter for each local expert.

    Base product, adapter product and their sum are three tensors (rows, out). A frozen base keeps
    no input for backward (``_GroupedLinear.forward``), the adapter's first factor does.

    Parameters
    ----------
    lora_rank
        Rank of the adapter; its scale is part of its second factor. 0: no adapter, the base trains.

    Attributes
    ----------
    lora_a, lora_b
        The factors, (experts, in, r) and (experts, r, out).
    """

    def __init__(self, experts: int, in_size: int, out_size: int, *, lora_rank: int, **how: Any):
        super().__init__(experts, in_size, out_size, **how)
        self.lora_a: torch.nn.Parameter | None = None
        self.lora_b: torch.nn.Parameter | None = None
        if lora_rank:
            weight: Tensor = self.weight0
            self.lora_a = expert_parameter(experts, in_size, lora_rank, weight.dtype)
            self.lora_b = expert_parameter(experts, lora_rank, out_size, weight.dtype)

    def forward(self, x: Tensor, counts: list[int]) -> tuple[Tensor, Tensor | None]:
        """Return (rows, out) of rows (rows, in) sorted by expert, ``counts`` of each; no bias."""
        base, bias = super().forward(x, counts)  # type: ignore[misc]
        if self.lora_a is None or self.lora_b is None:
            return base, bias
        adapter = grouped_matmul(grouped_matmul(x, self.lora_a, counts), self.lora_b, counts)
        return base + adapter, bias


class AdaptedColumn(Adapted, TEColumnParallelGroupedLinear):
    """FC1 (tp = 1) with an adapter."""


class AdaptedRow(Adapted, TERowParallelGroupedLinear):
    """FC2 (tp = 1) with an adapter."""


class TEGroupedExperts(TEGroupedMLP):
    """The ``experts`` of Megatron's MoELayer: FC1, weighted SwiGLU, FC2.

    Attributes
    ----------
    last_rows
        Routed rows of the last forward.
    """

    def __init__(
        self,
        num_local_experts: int,
        config: TransformerConfig,
        lora_rank: int,
        pg_collection: Any = None,
    ) -> None:
        layers = MLPSubmodules(
            linear_fc1=ModuleSpec(AdaptedColumn, params={"lora_rank": lora_rank}),
            linear_fc2=ModuleSpec(AdaptedRow, params={"lora_rank": lora_rank}),
        )
        super().__init__(num_local_experts, config, layers, pg_collection)
        self.last_rows = 0

    def forward(
        self, rows: Tensor, tokens_per_expert: Tensor, probs: Tensor
    ) -> tuple[Tensor, None]:
        """Return the experts' outputs (R, H), already weighted by ``probs`` (R,), and no bias."""
        self.last_rows = rows.shape[0]
        return super().forward(rows, tokens_per_expert, probs)
