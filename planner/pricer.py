"""compile_pricer: a model on a topology under a table → a Pricer that prices batch after batch."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from planner.admission import Decision, admit
from planner.batch import Batch, Layout
from planner.coefficients import Coefficients, Unpriced
from planner.compiled import Compiled, TermCompiler, dot, whole
from planner.figures import Figures
from planner.loads import BALANCED, Loader, RankShares
from planner.local import Local, localize
from planner.memory import MemorySample
from planner.model import Model
from planner.moments import Moment
from planner.outside import Outside, outside_bytes
from planner.price import Price
from planner.routing import Routing, allowed_per_token
from planner.stages import stage_of
from planner.state import LiveState
from planner.static import Static, static_bytes
from planner.step import Step
from planner.topology import Topology
from planner.units import Bytes
from planner.work import Work


@dataclass(frozen=True, slots=True)
class Pricer:
    """Prices batches for one model, topology, step and table. Made by `compile_pricer`."""

    model: Model
    topology: Topology
    step: Step
    coefficients: Coefficients
    routing: Routing
    local: Local
    _terms: TermCompiler = field(repr=False)
    _compiled: Compiled = field(repr=False)
    _stages: tuple[Loader, ...] = field(repr=False)

    @property
    def _loader(self) -> Loader:
        return self._stages[0]

    def price_ranks(
        self,
        batch: Batch,
        state: LiveState | None = None,
        *,
        layout: Layout | None = None,
        accumulating: bool = False,
    ) -> tuple[Price, ...]:
        """Price a batch on every rank of the world, in global rank order.

        Parameters
        ----------
        state
            What the process holds already; by default nothing (a cold call).
        layout
            Where the tokens lie, when it is not `planner.batch.lay_out`'s own choice.
        accumulating
            Whether an earlier child of the same call has left gradients.
        """
        held = state.held_tokens if state is not None else 0
        figures = self.figures(layout or self.lay_out(batch), held, accumulating)
        name = self.coefficients.name
        return tuple([Price(rank, name, of_rank) for rank, of_rank in enumerate(figures)])

    def lay_out(self, batch: Batch) -> Layout:
        """Return where the tokens of a batch lie: `planner.batch.lay_out`."""
        return self._loader.lay_out(batch)

    def figures(
        self, layout: Layout, held_tokens: int | tuple[int, ...] = 0, accumulating: bool = False
    ) -> Sequence[Figures]:
        """Return the figures behind every rank's price; ranks that are alike share one."""
        if len(self._stages) == 1:
            return self._loader.figures(layout, held_tokens, accumulating)
        found: list[Figures] = []
        size = self.topology.world // self.topology.pp
        for place, loader in enumerate(self._stages):
            mine = held_tokens
            if not isinstance(mine, int):
                mine = mine[place * size : (place + 1) * size]
            found.extend(loader.figures(layout, mine, accumulating))
        return found

    def static(self, rank: int = 0) -> Static:
        """Return what global ``rank`` holds whatever the batch: weights, gradients, optimizer."""
        return static_bytes(self.model, self.topology, self.step, self.topology.pp_rank(rank))

    def outside(self, inside: int, *, expandable: bool = False) -> Outside:
        """Return what a rank holds outside PyTorch beside ``inside`` bytes within it, growth apart.

        Nothing where ``step.device`` is no CUDA device.
        """
        return outside_bytes(
            self.model, self.topology, self.step, inside=inside, expandable=expandable
        )

    def price(
        self, batch: Batch, state: LiveState | None = None, *, layout: Layout | None = None
    ) -> Price:
        """Price a batch on the rank that needs most; it need not be the busiest in tokens."""
        held = state.held_tokens if state is not None else 0
        figures = self.figures(layout or self.lay_out(batch), held)
        worst, before = 0, figures[0]
        most = before.demand
        for rank, of_rank in enumerate(figures):
            if of_rank is not before and of_rank.demand > most:
                worst, most = rank, of_rank.demand
            before = of_rank
        return Price(worst, self.coefficients.name, figures[worst])

    def admit(
        self, batch: Batch, sample: MemorySample, *, allow_unpriced: bool = False
    ) -> Decision:
        """Decide whether the batch may run: see `planner.admission.admit`."""
        return admit(self, batch, sample, allow_unpriced=allow_unpriced)

    def largest_batch(self, sample: MemorySample, *, gradients: bool = True) -> Batch | None:
        """Return the largest batch that fits as it is: see `planner.search.largest_batch`."""
        from planner.search import largest_batch

        return largest_batch(self, sample, gradients=gradients)

    @property
    def unpriced(self) -> tuple[Unpriced, ...]:
        """What a rank will hold here and the table does not price."""
        if len(self._stages) == 1:
            return self._compiled.unpriced
        parts = [part for loader in self._stages for part in loader.compiled.unpriced]
        return tuple(dict.fromkeys(parts))

    def unpriced_of(self, *, forward_only: bool) -> tuple[Unpriced, ...]:
        """Return the same for a kind of call: without a backward less is held."""
        if not forward_only:
            return self.unpriced
        held = [loader.compiled_for(forward_only=True) for loader in self._stages]
        return tuple(dict.fromkeys(part for compiled in held for part in compiled.unpriced))

    def unpriced_parts(self, *, forward_only: bool) -> int:
        """Return how many parts the rank with most of them holds that the table does not price."""
        held = [loader.compiled_for(forward_only) for loader in self._stages]
        return max([compiled.unpriced_parts for compiled in held])

    def kinds(self, layout: Layout, held_tokens: int = 0) -> list[Figures]:
        """Return the figures of every kind of rank, each once."""
        return [f for loader in self._stages for f in loader.kinds(layout, held_tokens)]

    def remade(self, *, topology: Topology | None = None, step: Step | None = None) -> "Pricer":
        """Return this pricer for another topology or step; raises as `compile_pricer` does."""
        return compile_pricer(
            self.model,
            topology or self.topology,
            step or self.step,
            coefficients=self._terms,
            routing=self.routing,
        )

    def rates(self, moment: Moment, *, bound: bool = True) -> dict[str, int]:
        """Bytes of each term at ``moment`` for one local token, all ranks alike.

        With ``bound``, routed rows carry the table's allowance; the margin on bytes does not enter.
        """
        local = self.local
        rows = local.top_k
        if bound:
            worst = local.group_ranks * min(local.top_k, local.local_experts)
            rows = max(rows, min(allowed_per_token(self._loader.allowance, rows), worst))
        quantities = Work(1, 1, 0, rows, rows, local.group_ranks, 1).at(0, rows)
        return {
            live.term.name: whole(dot(live.weights, quantities))
            for stage in self._compiled.stages
            if stage.moment is moment
            for live in stage.live
        }

    def buffer_bytes(self, padded: int) -> Bytes:
        """Bytes a HybridEP buffer of ``padded`` tokens per rank holds on each rank."""
        return self._loader.buffer_bytes(padded)


def compile_pricer(
    model: Model,
    topology: Topology,
    step: Step,
    *,
    coefficients: Coefficients | TermCompiler | str = "megatron-local",
    routing: Routing | None = None,
) -> Pricer:
    """Fold everything that does not depend on the batch.

    Parameters
    ----------
    coefficients
        A table or its name (`planner.coefficients.Coefficients.load`), or its compiler where many
        pricers are made from one table.
    routing
        What is known of the router; by default balanced.

    Raises
    ------
    ConfigError
        When the topology does not divide the model, the dispatcher does not fit the topology, or
        the measured routing is of another model.
    TableError
        When the table cannot be read or does not fit the catalogue.
    """
    if isinstance(coefficients, str):
        coefficients = Coefficients.load(coefficients)
    if isinstance(coefficients, Coefficients):
        coefficients = TermCompiler(coefficients)
    table = coefficients.table
    routing = routing or Routing.balanced()
    routing.require(model.num_layers, model.num_experts)
    local = localize(model, topology, step)
    compiled = coefficients.compile(local)
    stage = topology if topology.pp == 1 else replace(topology, pp=1, vpp=1, stage_layers=None)
    loaders = []
    for pp_rank in range(topology.pp):
        there = localize(model, topology, step, pp_rank) if pp_rank else local
        shares = _shares(model, topology, step, routing, pp_rank)
        loaders.append(Loader(there, stage, coefficients, shares, routing.allowance))
    return Pricer(
        model, topology, step, table, routing, local, coefficients, compiled, tuple(loaders)
    )


def _shares(
    model: Model, topology: Topology, step: Step, routing: Routing, pp_rank: int
) -> tuple[RankShares, ...]:
    """Return what is known of the pairs that each rank of a pipeline stage receives."""
    layers = stage_of(model.num_layers, topology, pp_rank, step.microbatches).layers
    places = range(topology.world // topology.pp)
    if routing.kind == "balanced" or not layers:
        return (BALANCED,)
    if routing.worst:
        reached = min(model.top_k, model.num_experts // topology.ep) / model.top_k
        return (RankShares((reached,) * len(layers), None),) * len(places)
    ranks = [(topology.ep, topology.ep_rank(rank), layers) for rank in places]
    return tuple(
        RankShares(routing.rank_shares(*rank), routing.rank_bound_shares(*rank)) for rank in ranks
    )
