"""Log-probability of each token's target from a chunk of logits, as one operator."""

import torch
from torch import Tensor

from jobs.model.kernels.row_blocks import row_blocks

NO_TARGET = -1
"""Target of a token that predicts nothing; its log-probability and gradient are zero."""


@torch.library.custom_op("peakcast::target_log_probs", mutates_args=())
def target_log_probs(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probabilities of ``targets`` and log-sum-exp of each row, fp32 (c,) both.

    Stands for a fused vocabulary cross-entropy kernel: logits (c, V) are read once and no fp32 copy
    of them is written.
    """
    log_sum = logits.new_empty(logits.shape[0], dtype=torch.float32)
    for rows in row_blocks(*logits.shape):
        log_sum[rows] = logits[rows].float().logsumexp(-1)
    has_target = targets != NO_TARGET
    picked = logits.gather(1, targets.clamp(min=0).unsqueeze(1)).squeeze(1).float()
    return torch.where(has_target, picked - log_sum, 0.0), log_sum


@target_log_probs.register_fake
def _(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    rows = logits.shape[0]
    return logits.new_empty(rows, dtype=torch.float32), logits.new_empty(rows, dtype=torch.float32)


@torch.library.custom_op("peakcast::logits_gradient", mutates_args=())
def logits_gradient(logits: Tensor, targets: Tensor, log_sum: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of logits (c, V) for ``grad`` (c,) of the log-probabilities."""
    out, scale = logits.new_empty(logits.shape), (grad * (targets != NO_TARGET)).unsqueeze(1)
    place = targets.clamp(min=0).unsqueeze(1)
    for rows in row_blocks(*logits.shape):
        part = (logits[rows].float() - log_sum[rows].unsqueeze(1)).exp_().neg_()
        part.scatter_add_(1, place[rows], torch.ones_like(place[rows], dtype=part.dtype))
        out[rows] = part.mul_(scale[rows])
    return out


@logits_gradient.register_fake
def _(logits: Tensor, targets: Tensor, log_sum: Tensor, grad: Tensor) -> Tensor:  # noqa: ARG001
    return logits.new_empty(logits.shape)
