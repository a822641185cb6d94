"""Log-probability of each token's target from a chunk of logits, as one operator."""

import torch
from torch import Tensor

NO_TARGET = -1
"""Target of a token that predicts nothing; its log-probability and gradient are zero."""


@torch.library.custom_op("peakcast::target_log_probs", mutates_args=())
def target_log_probs(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probabilities of ``targets`` and log-sum-exp of each row, fp32 (c,) both.

    Stands for a fused vocabulary cross-entropy kernel: logits (c, V) are read once and no fp32 copy
    of them is written.
    """
    wide = logits.float()
    log_sum = wide.logsumexp(-1)
    has_target = targets != NO_TARGET
    picked = wide.gather(1, targets.clamp(min=0).unsqueeze(1)).squeeze(1)
    return torch.where(has_target, picked - log_sum, 0.0), log_sum


@target_log_probs.register_fake
def _(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    rows = logits.shape[0]
    return logits.new_empty(rows, dtype=torch.float32), logits.new_empty(rows, dtype=torch.float32)


@torch.library.custom_op("peakcast::logits_gradient", mutates_args=())
def logits_gradient(logits: Tensor, targets: Tensor, log_sum: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of logits (c, V) for ``grad`` (c,) of the log-probabilities."""
    has_target = targets != NO_TARGET
    out = (logits.float() - log_sum.unsqueeze(1)).exp_().neg_()
    place = targets.clamp(min=0).unsqueeze(1)
    out.scatter_add_(1, place, torch.ones_like(place, dtype=out.dtype))
    return out.mul_((grad * has_target).unsqueeze(1)).to(logits.dtype)


@logits_gradient.register_fake
def _(logits: Tensor, targets: Tensor, log_sum: Tensor, grad: Tensor) -> Tensor:  # noqa: ARG001
    return logits.new_empty(logits.shape)
