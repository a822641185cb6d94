"""A rank without a device and without peers: full size under fake tensors, in one process.

The process acts as any rank of any topology. Operators run as they do on real ranks but compute
nothing: a fake tensor has a shape and a storage of its size, so that the ledger sees what a real
rank allocates. Collectives go to torch's fake process group, which returns at once. What a real
rank would read from data, the sizes that routing decides, a `RoutingPlan` says instead; buffers
outside PyTorch are counted by their formula.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from jobs.backend import cpu
from jobs.hybridep import HybridEPBuffer, buffer_bytes
from jobs.hybridep_handle import Handle, empty_handle
from jobs.routing_plan import RoutingPlan
from planner.topology import Topology


def start(rank: int, topology: Topology) -> FakeTensorMode:
    """Become global ``rank`` of ``topology``; return the mode to build and run a model under.

    Raises
    ------
    ConfigError
        When the topology splits tp, pp or etp, which the model does not.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    cpu.require_runnable(topology)
    cpu.install()
    from megatron.core.transformer.moe import fused_a2a

    dist.init_process_group("fake", rank=rank, world_size=topology.world, store=FakeStore())
    cpu.make_groups(topology)
    fused_a2a.HybridEPBuffer = PlannedBuffer
    return FakeTensorMode(allow_non_fake_inputs=True)


def stop() -> None:
    """Leave the groups, and give the real reference of HybridEP its place back."""
    from megatron.core.transformer.moe import fused_a2a

    cpu.stop()
    fused_a2a.HybridEPBuffer = HybridEPBuffer
    PlannedBuffer.routing = None


def know(tensor: Tensor, values: Sequence[int]) -> None:
    """Let a fake tensor answer ``tolist`` with what it would hold on a real rank."""
    known = [int(value) for value in values]
    tensor.tolist = lambda: list(known)  # type: ignore[method-assign]


class PlannedRouting:
    """Answers for the sizes that routing decides on one rank, layer by layer.

    Parameters
    ----------
    plan
        Rows from each source rank to each expert.
    topology, rank
        Which rank this process acts as.
    """

    def __init__(self, plan: RoutingPlan, topology: Topology, rank: int) -> None:
        self.plan = plan
        self.group = topology.expert_group(rank)
        self.place = self.group.index(rank)
        self._local = plan.experts // topology.ep
        self._mine = slice(
            topology.ep_rank(rank) * self._local, (topology.ep_rank(rank) + 1) * self._local
        )
        self._call, self._layer = 0, 0
        self._tokens: tuple[int, ...] = ()

    def install(self, model: torch.nn.Module) -> None:
        """Answer for every dispatcher of ``model``."""
        PlannedBuffer.routing = self
        for index, layer in enumerate(model.decoder.layers):
            layer.mlp.register_forward_pre_hook(self._entering(index))
            dispatcher = layer.mlp.token_dispatcher
            if hasattr(dispatcher, "preprocess"):
                dispatcher.preprocess = self._preprocessing(dispatcher, dispatcher.preprocess)

    def begin(self, call: int, group_tokens: Sequence[int]) -> None:
        """Say which call runs next, and the tokens of each rank of the expert group in it."""
        self._call, self._tokens = call, tuple(group_tokens)

    @property
    def busiest_tokens(self) -> int:
        """Tokens of the group's busiest rank."""
        return max(self._tokens)

    @property
    def arriving(self) -> list[int]:
        """Rows of each local expert, from all ranks, at the layer at hand."""
        return self._counts()[:, self._mine].sum(0).tolist()  # type: ignore[no-any-return]

    def _counts(self) -> Any:
        return self.plan.counts(self._call, self._layer, self.group, self._tokens)

    def _entering(self, layer: int) -> Callable[[torch.nn.Module, Any], None]:
        def enter(_module: torch.nn.Module, _args: Any) -> None:
            self._layer = layer

        return enter

    def _preprocessing(self, dispatcher: Any, preprocess: Any) -> Callable[[Tensor], Tensor]:
        def preprocess_with_plan(routing_map: Tensor) -> Tensor:
            tokens_per_expert: Tensor = preprocess(routing_map)
            counts = self._counts()
            if dispatcher.input_splits is not None:
                leave = counts[self.place].reshape(len(self.group), self._local).sum(1)
                know(dispatcher.input_splits, leave)
                know(dispatcher.output_splits, counts[:, self._mine].sum(1))
                know(dispatcher.output_splits_tp, [counts[:, self._mine].sum()])
            know(tokens_per_expert, counts[:, self._mine].sum(0))
            return tokens_per_expert

        return preprocess_with_plan


class PlannedBuffer(HybridEPBuffer):
    """The HybridEP reference for a rank without peers: same tensors, same growth, nothing sent.

    The persistent buffers are counted and not made.
    """

    routing: PlannedRouting | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes that the persistent buffers would hold."""
        return buffer_bytes(
            self.capacity,
            self.ranks,
            self.hidden,
            self.local_experts * self.ranks,
            self._itemsize,
        )

    def _allocate(self) -> None:
        """Make nothing: `held_bytes` is the formula."""

    def _deliver(self, *_: Any) -> None:
        """Send nothing: fake rows hold no values."""

    def _give_back(self, *_: Any) -> None:
        """Return nothing: fake tokens hold no values."""

    def _prepare(self, routing_map: Tensor, itemsize: int) -> Handle:
        """Grow as the group's busiest rank makes every rank grow, and make the handle's tensors."""
        routing = self.routing
        assert routing is not None, "PlannedRouting.install comes first"
        most, arriving = routing.busiest_tokens, routing.arriving
        self._update(most, itemsize)
        gathered = routing_map.new_empty(most * self.ranks, routing_map.shape[1], dtype=torch.uint8)
        handle = empty_handle(
            gathered,
            most=most,
            ranks=self.ranks,
            local_experts=self.local_experts,
            tokens=routing_map.shape[0],
            rows=sum(arriving),
            sent=[],
            received=[],
        )
        know(handle.tokens_per_expert, arriving)
        return handle
