"""Sum the gradients of trainable parameters over the ranks that hold a copy."""

import torch
import torch.distributed as dist
from megatron.core import parallel_state


def reduce_gradients(model: torch.nn.Module) -> None:
    """Sum ``.grad`` in place: experts over the ranks with the same shard, the rest over dp x cp.

    The loss is already divided by the targets of the whole call, so gradients are summed, not
    averaged. A parameter without gradient takes part with zeros.
    """
    experts = parallel_state.get_expert_data_parallel_group()
    dense = parallel_state.get_data_parallel_group(with_context_parallel=True)
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        group = dense if getattr(parameter, "allreduce", True) else experts
        if group.size() == 1:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad, group=group)
