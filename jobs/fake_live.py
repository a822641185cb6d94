"""The live loop of a fake rank: planned routing, tensors without values, peers like itself."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from jobs.allocator.replay import ledger_steps, replay
from jobs.backend.fake import PlannedRouting
from jobs.layout import RequestLayout
from jobs.live import LiveLoop
from jobs.meter.allocation import Allocation
from jobs.meter.call import Call
from jobs.record import Observed
from jobs.routing_file import routing_of
from jobs.routing_plan import RoutingPlan
from jobs.spec import CellSpec
from jobs.workload import LocalBatch
from planner.batch import Layout, padded


@dataclass(frozen=True, slots=True, eq=False)
class PlannedBatch(LocalBatch):
    """A `LocalBatch` without text: its call, and the tokens of each rank of its expert group."""

    call: int
    group_tokens: tuple[int, ...]


class FakeLoop(LiveLoop):
    """Runs a cell's calls on fake tensors; enter the mode of `jobs.backend.fake.start` first.

    Parameters
    ----------
    plan
        Routing of every call; by default what the cell's weights say.
    """

    def __init__(self, *args: Any, plan: RoutingPlan | None = None) -> None:
        super().__init__(*args)
        self.routing = PlannedRouting(plan or plan_of(self.spec), self.spec.topology, self.rank)
        self.routing.install(self.model)
        self._resident = self.ledger.resident() if self.ledger else []
        self._timeline: list[Allocation] = []  # of every call so far

    def _batch(self, index: int, layout: Layout) -> PlannedBatch:
        topology = self.spec.topology
        tokens = layout.tokens_of(self.rank, topology)
        run = layout.replicas[topology.dp_rank(self.rank)]
        lengths = tuple(padded(self.spec.workload.requests[i], topology.cp) for i in run)
        if self.spec.workload.rank_tokens:
            lengths = (tokens * topology.cp,)  # one request whose every shard is this rank's size
        requests = self.spec.workload.requests or self.spec.workload.rank_tokens
        return PlannedBatch(
            tokens=torch.empty(tokens, dtype=torch.int64),
            targets=torch.empty(tokens, dtype=torch.int64),
            positions=torch.empty(tokens, dtype=torch.int64),
            layout=RequestLayout(lengths, topology.cp, topology.cp_rank(self.rank)),
            global_targets=sum(requests) - len(requests),
            call=index,
            group_tokens=tuple(layout.tokens_of(peer, topology) for peer in self.routing.group),
        )

    def _forward_backward(self, batch: PlannedBatch, call: Call | None) -> None:
        self.routing.begin(batch.call, batch.group_tokens)
        super()._forward_backward(batch, call)

    def _observe(self, *args: Any, **kwargs: Any) -> Observed:
        """Return what the ledger saw, and what a CUDA device's allocator would reserve for it."""
        observed = super()._observe(*args, **kwargs)
        self._timeline += self.seen.allocations
        reserved = replay(ledger_steps(self._timeline, self._resident)).peak_bytes
        return replace(observed, device={"replayed_reserved_bytes": reserved})

    def _exchange(self, figures: Sequence[int]) -> list[list[int]]:
        """Take every other rank to be like this one: it cannot be asked."""
        return [[int(figure) for figure in figures]] * self.spec.topology.world

    def _value(self, loss: torch.Tensor) -> None:  # noqa: ARG002 - a fake loss has no value
        return None


def plan_of(spec: CellSpec) -> RoutingPlan:
    """Return the routing that a cell's weights stand for.

    Raises
    ------
    ConfigError
        When the shares do not fit the model, or no routing has the imbalance.
    """
    model = spec.model
    shares = routing_of(spec).shares
    return RoutingPlan(model.num_experts, model.top_k, shares)
