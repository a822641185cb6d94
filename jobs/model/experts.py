"""Routed experts of one rank: grouped products over whole routed tensors, with LoRA adapters."""

from typing import Any

import torch
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from jobs.model.kernels.grouped_matmul import grouped_matmul
from jobs.model.kernels.swiglu import weighted_swiglu


class GroupedLinear(torch.nn.Module):
    """One linear layer of every local expert, with an adapter beside a frozen base.

    Base product, adapter product and their sum are three tensors (rows, out), as they are where
    the adapter is a module of its own. At ``lora_rank`` 0 there is no adapter and the base trains.

    Parameters
    ----------
    experts, in_features, out_features
        Local experts, and the width of a row before and after.
    lora_rank
        Rank of the adapter; its scale is part of its second factor.
    """

    def __init__(
        self,
        experts: int,
        in_features: int,
        out_features: int,
        lora_rank: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.weight = expert_parameter(experts, out_features, in_features, dtype)
        self.lora_a: torch.nn.Parameter | None = None
        self.lora_b: torch.nn.Parameter | None = None
        if lora_rank:
            self.weight.requires_grad_(False)
            self.lora_a = expert_parameter(experts, in_features, lora_rank, dtype)
            self.lora_b = expert_parameter(experts, lora_rank, out_features, dtype)

    def forward(self, x: Tensor, counts: list[int]) -> Tensor:
        """Return (rows, out) of rows (rows, in) sorted by expert, ``counts`` of each."""
        base = grouped_matmul(x, self.weight.transpose(1, 2), counts)
        if self.lora_a is None or self.lora_b is None:
            return base
        adapter = grouped_matmul(grouped_matmul(x, self.lora_a, counts), self.lora_b, counts)
        return base + adapter


def expert_parameter(*args: Any) -> torch.nn.Parameter:
    """Return a parameter of the local experts: its sizes, experts first, and its dtype."""
    *shape, dtype = args
    parameter = torch.nn.Parameter(torch.empty(*shape, dtype=dtype))
    parameter.allreduce = False  # Megatron's mark of a parameter of expert parallelism
    return parameter


class GroupedExperts(MegatronModule):
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
        pg_collection: Any = None,  # noqa: ARG002 - Megatron's signature
    ) -> None:
        super().__init__(config)
        hidden, width = config.hidden_size, config.moe_ffn_hidden_size
        dtype = config.params_dtype
        self.fc1 = GroupedLinear(num_local_experts, hidden, 2 * width, lora_rank, dtype)
        self.fc2 = GroupedLinear(num_local_experts, width, hidden, lora_rank, dtype)
        self.last_rows = 0

    def forward(
        self, rows: Tensor, tokens_per_expert: Tensor, probs: Tensor
    ) -> tuple[Tensor, None]:
        """Return the experts' outputs (R, H), already weighted by ``probs`` (R,), and no bias."""
        counts: list[int] = tokens_per_expert.tolist()
        self.last_rows = rows.shape[0]
        activated = weighted_swiglu(self.fc1(rows, counts), probs)
        return self.fc2(activated, counts), None
