"""RMSNorm as Megatron's layer specification builds it, over the fused operator."""

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from jobs.model.kernels.rms_norm import rms_norm


class RMSNorm(torch.nn.Module):
    """Root-mean-square normalisation over the last dimension, with a learned scale."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.empty(hidden_size, dtype=config.params_dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x``, (…, hidden_size)."""
        return rms_norm(x, self.weight, self.eps)[0]
