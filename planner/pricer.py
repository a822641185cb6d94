"""compile_pricer: a model on a topology under a table → a Pricer that prices batch after batch."""

from dataclasses import dataclass, field, replace

from planner.admission import Decision, MemorySample, admit
from planner.batch import Batch, Layout, lay_out
from planner.coefficients import MILLI, Coefficients
from planner.compiled import Compiled, compile_terms, dot, whole
from planner.errors import ConfigError
from planner.hybridep import buffer_bytes, growth_bytes, near_balanced_tokens, padded_tokens
from planner.local import Local, localize
from planner.model import Model
from planner.moments import Moment
from planner.price import Line, MomentPrice, Price
from planner.routing import Allowance, Routing, bound_rows, expected_rows
from planner.state import LiveState
from planner.step import Step
from planner.topology import Topology
from planner.units import Bytes, Rows, Tokens
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
    _compiled: Compiled = field(repr=False)
    _shares: tuple[tuple[float, ...] | None, ...] = field(repr=False)

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
        if layout is None:
            layout = lay_out(batch, self.topology)
        state = state or LiveState()
        return tuple(
            self._price(rank, layout, state.held_by(rank), accumulating)
            for rank in range(self.topology.world)
        )

    def price(
        self, batch: Batch, state: LiveState | None = None, *, layout: Layout | None = None
    ) -> Price:
        """Price a batch on the rank that needs most; it need not be the busiest in tokens."""
        prices = self.price_ranks(batch, state, layout=layout)
        return max(prices, key=lambda price: (price.demand_bytes, -price.rank))

    def admit(
        self, batch: Batch, sample: MemorySample, *, allow_unpriced: bool = False
    ) -> Decision:
        """Decide whether the batch may run: see `planner.admission.admit`."""
        return admit(self, batch, sample, allow_unpriced=allow_unpriced)

    def rates(self, moment: Moment, *, bound: bool = True) -> dict[str, int]:
        """Bytes of each term at ``moment`` for one local token, all ranks alike.

        With ``bound``, routed rows carry the table's allowance; the margin on bytes does not enter.
        """
        top_k = self.local.top_k
        rows = (
            bound_rows(
                (Rows(top_k),),
                self._allowance,
                measured=False,
                tokens=1,
                group_tokens=self.local.group_ranks,
                top_k=top_k,
                local_experts=self.local.local_experts,
            )
            if bound
            else (Rows(top_k),)
        )
        work = Work(
            tokens=Tokens(1), requests=0, group_slots=Tokens(self.local.group_ranks), rows=rows
        )
        quantities = work.quantities(self.local)[0]
        return {
            live.term.name: whole(dot(live.weights, quantities))
            for stage in self._compiled.stages
            if stage.moment is moment
            for live in stage.live
        }

    @property
    def _allowance(self) -> Allowance:
        """At EP1 every pair of a rank stays on it, so that nothing is allowed for."""
        return self.coefficients.allowance if self.local.ep > 1 else Allowance()

    def _works(self, rank: int, layout: Layout, accumulating: bool) -> tuple[Work, Work]:
        """Return the counts of this rank as expected, and with the allowance on routed rows."""
        group = [layout.tokens_of(peer, self.topology) for peer in self.topology.expert_group(rank)]
        tokens, group_tokens = layout.tokens_of(rank, self.topology), sum(group)
        shares = self._shares[rank] if self.local.ep > 1 else None
        rows = expected_rows(
            shares,
            tokens=tokens,
            group_tokens=group_tokens,
            top_k=self.local.top_k,
            layers=self.local.layers,
        )
        more = bound_rows(
            rows,
            self._allowance,
            measured=shares is not None,
            tokens=tokens,
            group_tokens=group_tokens,
            top_k=self.local.top_k,
            local_experts=self.local.local_experts,
        )
        requests = len(layout.replicas[self.topology.dp_rank(rank)])
        slots = Tokens(max(group) * len(group))
        expected = Work(
            tokens=tokens,
            requests=requests,
            group_slots=slots,
            rows=rows,
            accumulating=accumulating,
        )
        return expected, replace(expected, rows=more)

    def _price(self, rank: int, layout: Layout, held: int, accumulating: bool) -> Price:
        expected, bound = self._works(rank, layout, accumulating)
        quantities, more = expected.quantities(self.local), bound.quantities(self.local)
        margin = self.coefficients.margin_milli
        moments: dict[Moment, MomentPrice] = {}
        lines: list[Line] = []
        persistent = 0
        for stage in self._compiled.stages:
            layers = _layers_of(stage.moment, expected)
            layer = max(layers, key=lambda at: dot(stage.total, quantities[at]))
            high = max(dot(stage.total, more[at]) for at in _layers_of(stage.moment, bound))
            moments[stage.moment] = MomentPrice(
                expected=Bytes(whole(dot(stage.total, quantities[layer]))),
                bound=Bytes(whole(whole(high * margin))),
                layer=layer,
            )
            persistent = max(
                persistent,
                *(dot(stage.persistent, more[at]) for at in bound.candidate_layers()),
            )
            lines.extend(
                Line(
                    term=live.term.name,
                    moment=stage.moment,
                    copies=live.copies_milli / MILLI,
                    expected=Bytes(whole(dot(live.weights, quantities[layer]))),
                )
                for live in stage.live
            )
        needed, growth = self._growth(layout, rank, held)
        return Price(
            rank=rank,
            coefficients=self.coefficients.name,
            local_tokens=expected.tokens,
            routed_rows=expected.rows,
            moments=moments,
            lines=tuple(lines),
            growth_bytes=growth,
            growth_bound_bytes=Bytes(whole(growth * self.coefficients.growth_margin_milli)),
            buffer_tokens=needed,
            persistent_bound_bytes=Bytes(whole(whole(persistent * margin))),
            unpriced=self._compiled.unpriced,
        )

    def _growth(self, layout: Layout, rank: int, held: int) -> tuple[Tokens, Bytes]:
        """Return the padded tokens of the buffer this call needs, and the bytes that it adds."""
        if self.local.dispatcher != "hybridep":
            return Tokens(0), Bytes(0)
        policy = self.coefficients.buffers
        if policy.reserve == "near-balanced":
            tokens = near_balanced_tokens(layout.longest, self.local.cp, layout.busiest)
        else:
            peers = self.topology.expert_group(rank)
            tokens = Tokens(max(layout.tokens_of(peer, self.topology) for peer in peers))
        needed = padded_tokens(tokens, self.local.group_ranks)
        return needed, growth_bytes(self.buffer_bytes(needed), self.buffer_bytes(held), policy)

    def buffer_bytes(self, padded: int) -> Bytes:
        """Bytes a HybridEP buffer of ``padded`` tokens per rank holds on each rank."""
        return buffer_bytes(
            padded,
            ranks=self.local.group_ranks,
            hidden=self.local.hidden,
            num_experts=self.local.num_experts,
            itemsize=self.local.itemsize,
        )


def _layers_of(moment: Moment, work: Work) -> tuple[int, ...]:
    """Entries of the work's counts at which ``moment`` can be fullest."""
    if moment is Moment.BETWEEN_CALLS:
        return (len(work.rows),)
    return work.candidate_layers()


def compile_pricer(
    model: Model,
    topology: Topology,
    step: Step,
    *,
    coefficients: Coefficients | str = "megatron-local",
    routing: Routing | None = None,
) -> Pricer:
    """Fold everything that does not depend on the batch.

    Parameters
    ----------
    coefficients
        A table or its name (`planner.coefficients.Coefficients.load`).
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
    routing = routing or Routing.balanced()
    routing.require(model.num_layers, model.num_experts)
    local = localize(model, topology, step)
    if topology.pp > 1 and routing.shares is not None:
        raise ConfigError("measured routing cannot be divided over pipeline stages; use pp = 1")
    return Pricer(
        model=model,
        topology=topology,
        step=step,
        coefficients=coefficients,
        routing=routing,
        local=local,
        _compiled=compile_terms(local, coefficients),
        _shares=tuple(
            routing.rank_shares(topology.ep, topology.ep_rank(rank))
            for rank in range(topology.world)
        ),
    )
