"""Loads: which ranks of a layout are alike, and what the call brings to each kind of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from planner.batch import Batch, Layout, lay_out
from planner.compiled import Compiled, TermCompiler, whole
from planner.figures import Figures, Growth
from planner.folding import Even, Folding
from planner.hybridep import buffer_bytes, growth_bytes, near_balanced_tokens, padded_tokens
from planner.internode import require_tokens
from planner.local import Local
from planner.routing import Allowance, allowed_per_token, bound_rows, expected_rows
from planner.topology import Topology
from planner.units import Bytes, Tokens, ceil_div
from planner.work import Work

Shares = tuple[float, ...] | None


class RankShares(NamedTuple):
    """Shares of each layer's pairs that one rank receives: expected, and for the bound.

    ``None``: balanced; for the bound: what is expected, times the allowance.
    """

    expected: Shares
    bound: Shares


BALANCED = RankShares(None, None)


class Loader:
    """Turns layouts into the figures of every rank, for one model on one topology.

    Parameters
    ----------
    shares
        For each rank of the stage, what it receives of each layer's pairs; or `BALANCED` once.
    allowance
        Factor on routed rows for the bound, in place of the table's.
    """

    def __init__(
        self,
        local: Local,
        topology: Topology,
        terms: TermCompiler,
        shares: tuple[RankShares, ...],
        allowance: float | None = None,
    ) -> None:
        self.local = local
        self.topology = topology
        self.table = table = terms.table
        self.compiled = terms.compile(local)
        self._terms = terms
        self._without_gradients: Compiled | None = None
        self.shares = shares if local.ep > 1 and shares[0] is not BALANCED else None
        self.world = topology.world
        # at EP1 every pair of a rank stays on it, so that nothing is allowed for
        self.allowance = table.allowance if local.ep > 1 else Allowance()
        if allowance is not None and local.ep > 1:
            self.allowance = Allowance(balanced=allowance, measured=allowance)
        self._per_token = allowed_per_token(self.allowance, local.top_k)
        self._worst = min(local.top_k, local.local_experts)
        rows, slots = local.top_k, local.group_ranks
        more = max(rows, min(self._per_token, slots * self._worst))
        self._headless = Even(rows, more, slots, 0, 0)
        self._part = Even(rows, more, slots, 1, 0)  # all tokens lie in one chunk of the head
        self._whole = Even(rows, more, slots, 0, local.head_chunk)
        self._recomputes_all = local.recompute == "full"
        self._folded_for: tuple[Even | None, bool, bool] = None, False, False
        self._folding: Folding | None = None
        self._row_bytes = sum(
            each.row_bytes for each in table.allowed if each.when.mismatch(local) is None
        )
        self._buffered = local.dispatcher == "hybridep"
        self._near_balanced = table.buffers.reserve == "near-balanced"
        self._grown: tuple[tuple[int, int], Growth] = (-1, -1), NO_GROWTH
        self._laid: tuple[Batch, Layout] | None = None
        self._slots: list[int] = []

    def lay_out(self, batch: Batch) -> Layout:
        """Return `planner.batch.lay_out`'s layout; the last batch's is kept."""
        if self._laid is None or self._laid[0] is not batch:
            self._laid = batch, lay_out(batch, self.topology)
        return self._laid[1]

    def figures(
        self, layout: Layout, held: int | tuple[int, ...], accumulating: bool
    ) -> Sequence[Figures]:
        """Return every rank's figures, in global rank order; ranks that are alike share one."""
        tokens = layout.dense_tokens
        first = tokens[0]
        if layout.even and type(held) is int and self.shares is None:
            return [self._evenly(layout, first, held, accumulating)] * self.world
        return self._rank_by_rank(layout, held, accumulating)

    def kinds(self, layout: Layout, held: int) -> list[Figures]:
        """Return the figures of every kind of rank, each once."""
        figures = self.figures(layout, held, accumulating=False)
        if figures[0] is figures[-1] and figures.count(figures[0]) == len(figures):
            return [figures[0]]
        return list(dict.fromkeys(figures))

    def _evenly(self, layout: Layout, tokens: int, held: int, accumulating: bool) -> Figures:
        """Return the figures of all ranks, which hold as many tokens under balanced routing.

        Every count follows from the tokens: an even share of the group's pairs is as many as the
        rank's own tokens make.
        """
        local = self.local
        even = self._whole if tokens >= local.head_chunk else self._part
        if layout.headless:
            even = self._headless
        forward_only = layout.forward_only and self._recomputes_all
        work: Work = tuple.__new__(  # half the time of the constructor
            Work,
            (
                local.layers,
                tokens,
                len(layout.replicas[0]),
                tokens * even.rows,
                tokens * even.more_rows,
                tokens * even.slots,
                tokens * even.head + even.head_once,
                accumulating,
                forward_only,
                local.linear_layers,
            ),
        )
        kind = even, accumulating, forward_only
        compiled = self.compiled_for(forward_only)
        if self._folded_for != kind:
            margin = self.table.margin_milli
            self._folding = compiled.folding(accumulating, margin, even)
            self._folded_for = kind
        return Figures(
            compiled,
            work,
            self.table.margin_milli,
            self._growth(layout.longest, tokens, tokens, held),
            self._beside(work),
            self._folding,
        )

    def _rank_by_rank(
        self, layout: Layout, held: int | tuple[int, ...], accumulating: bool
    ) -> list[Figures]:
        topology, tokens = self.topology, layout.dense_tokens
        if not self._slots:
            self._slots = [
                topology.dp_rank(rank) * topology.cp + topology.cp_rank(rank)
                for rank in range(self.world)
            ]
        requests = [len(run) for run in layout.replicas]
        most = layout.busiest
        known: dict[tuple[int, int, int, int, int, int], Figures] = {}
        found: list[Figures] = []
        size = len(topology.expert_group(0))
        for first in range(0, self.world, size):
            slots = self._slots[first : first + size]
            group = [tokens[slot] for slot in slots]
            busiest, together = max(group), sum(group)
            for rank, slot in enumerate(slots, first):
                expert = topology.ep_rank(rank) if self.shares else 0
                mine = held if isinstance(held, int) else held[rank]
                count = requests[slot // topology.cp]
                key = (tokens[slot], count, busiest, together, expert, mine)
                figures = known.get(key)
                if figures is None:
                    shares = self.shares[rank] if self.shares else BALANCED
                    work = self._work(*key[:4], shares, layout, accumulating)
                    growth = self._growth(layout.longest, busiest, most, mine)
                    figures = known[key] = self._figures(work, growth)
                found.append(figures)
        return found

    def _work(
        self,
        tokens: int,
        requests: int,
        busiest: int,
        group_tokens: int,
        shares: RankShares,
        layout: Layout,
        accumulating: bool,
    ) -> Work:
        """Return the counts of one kind of rank."""
        local = self.local
        rows: int | tuple[int, ...]
        more: int | tuple[int, ...]
        worst = group_tokens * self._worst
        if shares.expected is None:
            # an even share of what the group's tokens make, however the tokens lie among its ranks
            rows = ceil_div(group_tokens * local.top_k, local.group_ranks)
            more = max(rows, min(tokens * self._per_token, worst))
        else:
            rows = expected_rows(shares.expected, group_tokens, local.top_k)
            if shares.bound is None:
                more = bound_rows(rows, self.allowance, worst)
            else:
                more = expected_rows(shares.bound, group_tokens, local.top_k)
                more = bound_rows(tuple(map(max, rows, more)), EXACT, worst)
            if rows.count(rows[0]) == len(rows):
                rows, more = rows[0], more[0]
        head = 0 if layout.headless else min(tokens, local.head_chunk)
        return Work(
            local.layers,
            tokens,
            requests,
            rows,
            more,
            busiest * local.group_ranks,
            head,
            accumulating,
            layout.forward_only and self._recomputes_all,
            local.linear_layers,
        )

    def _figures(self, work: Work, growth: Growth) -> Figures:
        beside = self._beside(work)
        compiled = self.compiled_for(work.forward_only)
        return Figures(compiled, work, self.table.margin_milli, growth, beside)

    def compiled_for(self, forward_only: bool) -> Compiled:
        """Return the stages of a call with or without a backward; made when first asked for."""
        if not (forward_only and self._recomputes_all):
            return self.compiled
        if self._without_gradients is None:
            self._without_gradients = self._terms.compile(replace(self.local, gradients=False))
        return self._without_gradients

    def _beside(self, work: Work) -> int:
        """Return the bytes of the bound beside the margin."""
        more = work.more_rows
        rows = more if isinstance(more, int) else max(more)
        return self.table.call_bytes + self._row_bytes * rows

    def _growth(self, longest: int, busiest: int, most: int, held: int) -> Growth:
        """Return the padded tokens of the buffer this call needs, and the bytes that it adds.

        Parameters
        ----------
        longest
            Padded tokens of the longest packed sequence, over all its cp ranks.
        busiest, most
            Tokens of the busiest rank of the expert group, and of all ranks.
        held
            Padded tokens of the buffer that is held.
        """
        if not self._buffered:
            return NO_GROWTH
        if self._near_balanced:
            busiest = near_balanced_tokens(longest, self.local.cp, most)
        key = busiest, held
        if key == self._grown[0]:
            return self._grown[1]
        needed = padded_tokens(busiest, self.local.group_ranks)
        require_tokens(needed, self.local.domains)
        found = Growth(needed, NO_BYTES, NO_BYTES)
        if needed > held:
            now = self.buffer_bytes(held) if held else 0
            growth = growth_bytes(self.buffer_bytes(needed), now, self.table.buffers)
            bound = whole(growth * self.table.growth_margin_milli)
            found = Growth(needed, growth, Bytes(bound))
        self._grown = key, found  # a batch is often decided on again
        return found

    def buffer_bytes(self, padded: int) -> Bytes:
        """Bytes a HybridEP buffer of ``padded`` tokens per rank holds on each rank."""
        return buffer_bytes(
            padded,
            ranks=self.local.group_ranks,
            hidden=self.local.hidden,
            num_experts=self.local.num_experts,
            itemsize=self.local.itemsize,
            domains=self.local.domains,
        )


NO_BYTES = Bytes(0)
EXACT = Allowance()
"""Nothing is allowed for beside what is given."""

NO_GROWTH = Growth(Tokens(0), NO_BYTES, NO_BYTES)
