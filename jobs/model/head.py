"""The head: log-probabilities of the targets, in chunks of tokens."""

from typing import Any

import torch
from torch import Tensor

from jobs.model.kernels.target_log_probs import logits_gradient, target_log_probs


class _ChunkedLogProbs(torch.autograd.Function):
    """Forward keeps two fp32 statistics per token; backward makes a chunk's logits again.

    One chunk's logits (chunk, V), and in backward their gradient beside them, are all that ever
    lives of the vocabulary's width.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
        log_probs = hidden.new_empty(hidden.shape[0], dtype=torch.float32)
        log_sums = torch.empty_like(log_probs)
        for start in range(0, hidden.shape[0], chunk):
            rows = slice(start, start + chunk)
            log_probs[rows], log_sums[rows] = target_log_probs(
                hidden[rows] @ weight.t(), targets[rows]
            )
        ctx.chunk = chunk
        ctx.save_for_backward(hidden, weight, targets, log_sums)
        return log_probs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        hidden, weight, targets, log_sums = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for start in range(0, hidden.shape[0], ctx.chunk):
            rows = slice(start, start + ctx.chunk)
            grad_logits = logits_gradient(
                hidden[rows] @ weight.t(), targets[rows], log_sums[rows], grad[rows]
            )
            torch.mm(grad_logits, weight, out=grad_hidden[rows])
            if grad_weight is not None:
                grad_weight.addmm_(grad_logits.t(), hidden[rows])
            del grad_logits  # else it stands beside the next chunk's logits and gradient
        return grad_hidden, grad_weight, None, None


class Head(torch.nn.Module):
    """Output weight (V, H) over the final norm's output.

    Parameters
    ----------
    chunk
        Tokens whose logits exist at a time.
    """

    def __init__(self, hidden: int, vocab: int, chunk: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.chunk = chunk
        self.weight = torch.nn.Parameter(torch.empty(vocab, hidden, dtype=dtype))

    def forward(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return log-probabilities (T,) fp32 of ``targets`` (T,), 0 where there is none."""
        return _ChunkedLogProbs.apply(hidden, self.weight, targets, self.chunk)
