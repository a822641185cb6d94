"""The requests of a call as tensors on one rank: bytes of text that ships with Python."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jobs.layout import RequestLayout
from jobs.model.kernels.target_log_probs import NO_TARGET
from jobs.spec import CellSpec
from jobs.text import text_of, window
from planner.batch import balanced_runs, padded
from planner.errors import ConfigError

VOCAB = 256
"""One token per byte."""


@dataclass(frozen=True, slots=True, eq=False)
class LocalBatch:
    """What one rank holds of a call's requests, in `RequestLayout` order.

    Parameters
    ----------
    tokens, targets
        (T,) int64; the target is the next token of the request, `NO_TARGET` at its end and padding.
    positions
        (T,) int64, within the request.
    layout
        How the requests lie on the context-parallel ranks.
    global_targets
        Targets of the whole call, over all ranks and split children.
    """

    tokens: Tensor
    targets: Tensor
    positions: Tensor
    layout: RequestLayout
    global_targets: int

    @property
    def has_target(self) -> Tensor:
        """(T,) bool: whether a token predicts anything."""
        return self.targets != NO_TARGET


def request_tokens(spec: CellSpec, call: int, request: int) -> Tensor:
    """Return one request's tokens in one call: a window of text drawn from seed, call, index."""
    draw = random.Random(f"{spec.workload.seed}/{call}/{request}")
    start = draw.randrange(len(text_of("calls")))
    text = window("calls", start, spec.workload.requests[request])
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def local_batch(
    spec: CellSpec, rank: int, call: int, requests: tuple[int, ...] | None = None
) -> LocalBatch:
    """Return this rank's part of a call.

    Parameters
    ----------
    rank
        Global rank.
    call
        Index of the call; calls differ in text and agree in lengths.
    requests
        Indices of the requests of this rank's data-parallel replica, as a split child has them, by
        default its balanced run. It may be empty: the rank then holds no token.

    Raises
    ------
    ConfigError
        When the vocabulary has no token for a byte, or no request has a token to predict.
    """
    if spec.model.vocab < VOCAB:
        raise ConfigError(
            f"Model.vocab = {spec.model.vocab} has no token for each of the {VOCAB} bytes of text; "
            f"give vocab >= {VOCAB}"
        )
    lengths, topology = spec.workload.requests, spec.topology
    global_targets = sum(lengths) - len(lengths)
    if not global_targets:
        raise ConfigError("every request has one token; give a request of at least two")
    if requests is None:
        requests = balanced_runs(lengths, topology.dp)[topology.dp_rank(rank)]
    return pack(
        [request_tokens(spec, call, index) for index in requests],
        topology.cp,
        topology.cp_rank(rank),
        global_targets,
    )


def pack(requests: list[Tensor], degree: int, rank: int, global_targets: int) -> LocalBatch:
    """Pad requests to chunks, lay them out and return the part of context-parallel ``rank``."""
    sizes = tuple(padded(len(request), degree) for request in requests)
    layout = RequestLayout(sizes, degree, rank)
    tokens, targets = [], []
    for request, size in zip(requests, sizes, strict=True):
        inputs = torch.zeros(size, dtype=torch.int64)
        inputs[: len(request)] = request
        nexts = torch.full((size,), NO_TARGET)
        nexts[: len(request) - 1] = request[1:]
        tokens.append(layout.local(inputs))
        targets.append(layout.local(nexts))
    empty = torch.empty(0, dtype=torch.int64)
    return LocalBatch(
        tokens=torch.cat(tokens) if tokens else empty,
        targets=torch.cat(targets) if targets else empty,
        positions=layout.positions(),
        layout=layout,
        global_targets=global_targets,
    )


def text_batch(role: str, starts: Sequence[int], length: int) -> LocalBatch:
    """Return windows of one role's text (`jobs.text`) as the requests of a one-rank batch."""
    requests = [
        torch.frombuffer(bytearray(window(role, start, length)), dtype=torch.uint8).long()
        for start in starts
    ]
    return pack(requests, degree=1, rank=0, global_targets=len(starts) * (length - 1))
