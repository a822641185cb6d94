"""A census of routing: which share of the routed rows each expert gets, measured by running."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from jobs.text import text_of
from jobs.workload import LocalBatch, text_batch


def held_out(length: int, requests: int = 32) -> list[LocalBatch]:
    """Return requests of text that neither training nor the calls of a sweep use, one a batch."""
    stride = len(text_of("census")) // requests
    return [text_batch("census", [index * stride], length) for index in range(requests)]


def routing_shares(model: torch.nn.Module, batches: Iterable[LocalBatch]) -> list[list[float]]:
    """Return the share of each expert (global index) in each layer's routed rows.

    Every rank calls it with its own batches; the counts of all ranks are added up. Runs forward
    only, without gradients and without recompute, and leaves the model as it was.

    Raises
    ------
    ValueError
        When no rank routed any token.
    """
    routers = [layer.mlp.router for layer in model.decoder.layers]
    counts = torch.zeros(len(routers), routers[0].weight.shape[0], dtype=torch.int64)

    def count(layer: int) -> object:
        def add(_module: torch.nn.Module, _args: object, output: tuple[Tensor, Tensor]) -> None:
            counts[layer] += output[1].sum(0)  # the routing map, (T, E)

        return routers[layer].register_forward_hook(add)

    hooks = [count(layer) for layer in range(len(routers))]
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for batch in batches:
                model(batch)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    dist.all_reduce(counts)
    totals = counts.sum(1, keepdim=True)
    if not totals.all():
        raise ValueError("no token was routed; give the census at least one request")
    return (counts.double() / totals).tolist()


def busiest_shares(shares: list[list[float]], ep: int) -> list[float]:
    """Return, per layer, the busiest expert rank's share of the rows over an even share.

    1.0 is balance, ``ep`` the worst case: every row on one rank.
    """
    local = len(shares[0]) // ep
    return [
        max(sum(row[rank * local : (rank + 1) * local]) for rank in range(ep)) * ep
        for row in shares
    ]
