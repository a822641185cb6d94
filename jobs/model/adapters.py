"""Adapters on dense projections: those of attention, Gated DeltaNet and the shared expert."""

from typing import Any

import torch
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.spec_utils import ModuleSpec
from torch import Tensor


class Adapted:
    """Mixed into one of Megatron's parallel linear layers: a LoRA adapter beside a frozen base.

    Base product, adapter product and their sum are three tensors (…, out), as where the adapter is
    a module of its own. The base's input is kept for the gradient of the adapter's first factor.

    Parameters
    ----------
    lora_rank
        Rank of the adapter; its scale is part of its second factor.

    Attributes
    ----------
    lora_a, lora_b
        The factors, (in, r) and (r, out).
    """

    weight: Tensor

    def __init__(self, *args: Any, lora_rank: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        out_features, in_features = self.weight.shape
        self.lora_a = torch.nn.Parameter(self.weight.new_empty(in_features, lora_rank))
        self.lora_b = torch.nn.Parameter(self.weight.new_empty(lora_rank, out_features))

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """Return (…, out) of ``x`` (…, in), and the base's bias."""
        base, bias = super().forward(x, *args, **kwargs)  # type: ignore[misc]
        return base + torch.matmul(torch.matmul(x, self.lora_a), self.lora_b), bias


class AdaptedColumnParallelLinear(Adapted, ColumnParallelLinear):
    """A column-parallel layer (tp = 1) with an adapter."""


class AdaptedRowParallelLinear(Adapted, RowParallelLinear):
    """A row-parallel layer (tp = 1) with an adapter."""


def column(lora_rank: int) -> Any:
    """Return what to build a column-parallel layer from; rank 0 is without adapter."""
    return _spec(ColumnParallelLinear, AdaptedColumnParallelLinear, lora_rank)


def row(lora_rank: int) -> Any:
    """Return what to build a row-parallel layer from; rank 0 is without adapter."""
    return _spec(RowParallelLinear, AdaptedRowParallelLinear, lora_rank)


def _spec(plain: type, adapted: type, lora_rank: int) -> Any:
    return ModuleSpec(adapted, params={"lora_rank": lora_rank}) if lora_rank else plain
