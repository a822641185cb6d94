"""Transformer Engine's Triton permutation kernels, each launch run on the host.

What their Python allocates around a launch (``transformer_engine/pytorch/triton/permutation.py``)
stays its own. Arguments are read by their place in the launches of version 2.13.
"""

from collections.abc import Callable
from typing import Any

import torch
from host_kernels import host_view
from torch import Tensor

Run = Callable[..., None]


def host(x: Any) -> Any:
    """Return a view of a device's tensor on the host; anything else as it is."""
    return host_view(x) if isinstance(x, Tensor) and x.device.type == "cuda" else x


class Launch:
    """Stands in a kernel's place: ``kernel[grid](…)`` runs ``run`` on views of the same bytes."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __getitem__(self, _grid: Any) -> Run:
        """Return what the launch calls."""
        return lambda *args, **settings: self._run(*map(host, args), **settings)


def _row_id_map(routing_map: Tensor, *args: Any) -> None:
    """Write all of the map in the first of its three passes, which alone sees the routing map."""
    row_id_map = args[5]
    chosen = routing_map.bool()
    experts = chosen.shape[1]
    expert, token = chosen.t().nonzero(as_tuple=True)
    place = chosen.cumsum(1)[token, expert] - 1
    row_id_map[token, place] = torch.arange(len(token), dtype=torch.int32)
    row_id_map[token, experts + place] = expert.int()
    row_id_map[:, -1] = chosen.sum(1)


def nothing(*_: Any, **__: Any) -> None:
    """Leave all as it is: so do passes two and three, since the first has written the map."""


def _entries(row_id_map: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return token, row and expert of each routed pair."""
    experts = row_id_map.shape[1] // 2
    used = torch.arange(experts) < row_id_map[:, -1:]
    token = used.nonzero(as_tuple=True)[0]
    return token, row_id_map[:, :experts][used].long(), row_id_map[:, experts:-1][used].long()


def _permute(
    tokens: Tensor, row_id_map: Tensor, probs: Tensor | None, *args: Any, **_: Any
) -> None:
    rows, row_probs = args[3:5]
    token, row, expert = _entries(row_id_map)
    rows[row] = tokens[token]
    if probs is not None:
        row_probs[row] = probs[token, expert]


def _unpermute(rows: Tensor, row_id_map: Tensor, *args: Any, **settings: Any) -> None:
    if settings["WITH_MERGING_PROBS"]:
        raise NotImplementedError("unpermute with merging probabilities; the experts apply them")
    row_probs, tokens, probs = args[1], args[3], args[4]
    token, row, expert = _entries(row_id_map)
    total = torch.zeros(tokens.shape, dtype=torch.float32)
    tokens.copy_(total.index_add_(0, token, rows[row].float()))
    if row_probs is not None:
        probs.zero_()
        probs[token, expert] = row_probs[row]


def _chunk_sort_map(splits: Tensor, order: Tensor, destination: Tensor, *_: Any, **__: Any) -> None:
    splits, order = splits.long(), order.long()
    starts = splits.cumsum(0) - splits
    sources = [torch.arange(starts[i], starts[i] + splits[i]) for i in order.tolist()]
    source = torch.cat(sources)
    destination[source] = torch.arange(len(source), dtype=torch.int32)


def _sort_chunks(rows: Tensor, row_id_map: Tensor, probs: Any, *args: Any, **settings: Any) -> None:
    out, out_probs = args[6:8]
    place = row_id_map.long()
    for into, source in ((out, rows), (out_probs, probs)):
        if source is None:
            continue
        if settings["FORWARD"]:
            into[place] = source
        else:
            into.copy_(source[place])


KERNELS: dict[str, Run] = {
    "_row_id_map_pass_1_kernel": _row_id_map,
    "_row_id_map_pass_2_kernel": nothing,
    "_row_id_map_pass_3_kernel": nothing,
    "_permute_kernel": _permute,
    "_unpermute_kernel": _unpermute,
    "_make_chunk_sort_map_kernel": _chunk_sort_map,
    "_sort_chunks_by_map_kernel": _sort_chunks,
}
