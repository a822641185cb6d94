"""Laws that every price obeys, whatever the table."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import (
    Batch,
    ConfigError,
    LiveState,
    MemorySample,
    Moment,
    Phase,
    Routing,
    Step,
    Topology,
    compile_pricer,
)
from planner.batch import lay_out
from planner.children import demands_of, split_layouts
from planner.figures import Figures
from planner.hybridep import BufferPolicy, growth_bytes
from planner.local import localize
from tests.planner.strategies import TABLES, batches, calls, models, steps, topologies


@given(models(), topologies(), steps(), TABLES, batches())
def test_bytes_are_never_negative_and_bound_covers_expected(model, topology, step, table, batch):
    """Law: bytes are at least 0, and the bound is at least the expected figure at every moment."""
    pricer = compile_pricer(model, topology, step, coefficients=table)
    for price in pricer.price_ranks(batch):
        assert price.growth_bytes >= 0
        assert all(line.expected >= 0 for line in price.lines)
        for figure in price.moments.values():
            assert 0 <= figure.expected <= figure.bound


@given(models(), topologies(), steps(), TABLES, batches(), st.integers(0, 11), st.integers(1, 999))
def test_more_tokens_are_never_cheaper(model, topology, step, table, batch, index, more):
    """Law: a longer request never lowers a moment's expected or bound, or growth, on any rank."""
    pricer = compile_pricer(model, topology, step, coefficients=table)
    layout = [list(batch.requests)]
    longer = list(batch.requests)
    longer[index % len(longer)] += more
    layout.append(longer)
    if topology.dp > 1:  # cuts may move between replicas; compare the same cut
        runs = tuple(
            tuple(i for i in range(len(longer)) if i % topology.dp == replica)
            for replica in range(topology.dp)
        )
    else:
        runs = (tuple(range(len(longer))),)
    small, large = (
        pricer.price_ranks(b, layout=lay_out(b, topology, runs))
        for b in (Batch(requests=requests) for requests in layout)
    )
    for before, after in zip(small, large, strict=True):
        for moment, figure in before.moments.items():
            assert after.moments[moment].expected >= figure.expected
            assert after.moments[moment].bound >= figure.bound
        assert after.growth_bytes >= before.growth_bytes


@given(models(), steps(), st.sampled_from([1, 2, 4, 8]))
def test_ep_never_raises_expert_weights(model, step, ep):
    """Law: experts of a rank times EP are the experts of the model; more EP, fewer on a rank."""
    local = localize(model, Topology(dp=8, ep=ep), step)
    assert local.local_experts * ep == model.num_experts


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.sampled_from(["beside", "in-place"]))
def test_growth_is_idempotent(needed, held, replace):
    """Law: once grown, nothing more; beside charges all of the new, in-place the difference."""
    policy = BufferPolicy(reserve="call", replace=replace)
    growth = growth_bytes(needed, held, policy)
    assert growth_bytes(needed, max(needed, held), policy) == 0
    if needed <= held:
        assert growth == 0
    else:
        assert growth == (needed if replace == "beside" else needed - held)


@given(models(), topologies(), steps(), TABLES, batches())
def test_growth_is_in_both_peaks_and_never_retained(model, topology, step, table, batch):
    """Law (seed 000): growth enters the forward and checkpoint peaks, never retention.

    On each rank: which one needs most may change once the buffers are there.
    """
    pricer = compile_pricer(model, topology, step, coefficients=table)
    before = pricer.price_ranks(batch)
    held = LiveState(held_tokens=max(price.buffer_tokens for price in before))
    for cold, warm in zip(before, pricer.price_ranks(batch, held), strict=True):
        assert warm.growth_bytes == 0
        assert cold.forward_bytes - warm.forward_bytes == cold.growth_bound_bytes
        assert cold.backward_bytes - warm.backward_bytes == cold.growth_bound_bytes
        assert cold.retained_bytes == warm.retained_bytes


@settings(max_examples=60)
@given(models(), topologies(), steps(), TABLES, batches(), st.integers(2, 6))
def test_splitting_never_raises_a_childs_peak(model, topology, step, table, batch, count):
    """Law: a child holds no more than the whole on any rank; together they bring all requests."""
    pricer = compile_pricer(model, topology, step, coefficients=table)
    whole = lay_out(batch, topology)
    prices = pricer.price_ranks(batch, layout=whole)
    children = split_layouts(batch, pricer, whole, count)
    assert len(children) == count
    for replica, requests in enumerate(whole.replicas):
        assert tuple(itertools.chain(*(c.replicas[replica] for c in children))) == requests
    for child in children:
        for part, all_of_it in zip(pricer.price_ranks(batch, layout=child), prices, strict=True):
            assert part.expected_bytes <= all_of_it.expected_bytes
            assert part.bound_bytes <= all_of_it.bound_bytes
            assert part.growth_bytes <= all_of_it.growth_bytes


@given(models(), topologies(), steps(), batches(), st.data())
def test_measured_routing_conserves_rows(model, topology, step, batch, data):
    """Law: rows that arrive at a group are its tokens x top-k (up to rounding up)."""
    raw = data.draw(
        st.lists(
            st.lists(st.integers(1, 50), min_size=model.num_experts, max_size=model.num_experts),
            min_size=model.num_layers,
            max_size=model.num_layers,
        )
    )
    shares = [[value / sum(row) for value in row] for row in raw]
    pricer = compile_pricer(model, topology, step, routing=Routing.measured(shares))
    prices = pricer.price_ranks(batch)
    for rank in range(0, topology.world, topology.ep):
        group = [prices[peer] for peer in topology.expert_group(rank)]
        pairs = sum(price.local_tokens for price in group) * model.top_k
        for layer in range(model.num_layers):
            arrived = sum(price.routed_rows[layer] for price in group)
            assert pairs <= arrived <= pairs + len(group)


@given(models(), topologies(), steps(), TABLES, batches())
def test_ranks_alike_are_priced_alike(model, topology, step, table, batch):
    """Law: ranks with the same tokens, group and routing have the same price."""
    pricer = compile_pricer(model, topology, step, coefficients=table)
    prices = pricer.price_ranks(batch)
    if len({price.local_tokens for price in prices}) == 1:
        assert len({price.demand_bytes for price in prices}) == 1


@given(models(), topologies(), steps(), TABLES, batches())
def test_peak_is_a_maximum_over_moments(model, topology, step, table, batch):
    """Law: terms at the peak sum to the peak (each rounded up), which no moment exceeds."""
    pricer = compile_pricer(model, topology, step, coefficients=table)
    price = pricer.price(batch)
    total = sum(price.terms.values())
    assert price.expected_bytes <= total <= price.expected_bytes + len(price.terms)
    for moment, figure in price.moments.items():
        if moment not in (Moment.RETAINED, Moment.BETWEEN_CALLS):
            assert figure.expected <= price.expected_bytes


@given(models(), topologies(), steps(), batches(), st.integers(0, 3))
def test_admission_agrees_with_its_own_demand(model, topology, step, batch, shift):
    """Law: room equal to the demand admits; one byte less on any rank does not."""
    pricer = compile_pricer(model, topology, step, coefficients="art-954")
    prices = pricer.price_ranks(batch)
    rooms = [price.demand_bytes for price in prices]
    whole = pricer.admit(batch, MemorySample(room_bytes=tuple(rooms)), allow_unpriced=True)
    assert type(whole).__name__ == "Admit"
    rooms[shift % len(rooms)] -= 1
    less = pricer.admit(batch, MemorySample(room_bytes=tuple(rooms)), allow_unpriced=True)
    assert type(less).__name__ in ("Split", "Refuse")
    if type(less).__name__ == "Split":
        again = demands_of(less.children, MemorySample(room_bytes=tuple(rooms)), together=True)
        assert all(demand.short_bytes <= 0 for demand in again)


@given(models(), topologies(), steps(), TABLES, batches(), st.integers(1, 4))
def test_more_layers_are_never_cheaper(model, topology, step, table, batch, more):
    """Law: another layer never lowers a moment's expected or bound bytes on any rank."""
    deeper = replace(model, num_layers=model.num_layers + more)
    before, after = (
        compile_pricer(m, topology, step, coefficients=table).price_ranks(batch)
        for m in (model, deeper)
    )
    _never_cheaper(before, after)


@given(models(), topologies(), steps(), TABLES, batches(), st.sampled_from([64, 512]))
def test_wider_experts_are_never_cheaper(model, topology, step, table, batch, more):
    """Law: wider routed experts never lower a moment's expected or bound bytes on any rank."""
    wider = replace(model, expert_hidden=model.expert_hidden + more)
    before, after = (
        compile_pricer(m, topology, step, coefficients=table).price_ranks(batch)
        for m in (model, wider)
    )
    _never_cheaper(before, after)


def _never_cheaper(before, after):
    for small, large in zip(before, after, strict=True):
        for moment, figure in small.moments.items():
            assert large.moments[moment].expected >= figure.expected
            assert large.moments[moment].bound >= figure.bound
        assert large.demand_bytes >= small.demand_bytes


@given(models(), topologies(), steps(), TABLES, st.data())
def test_renaming_ranks_renames_prices(model, topology, step, table, data):
    """Law: expert groups that swap their tokens swap their prices; nothing knows a rank's name."""
    slots = topology.dp * topology.cp
    size = topology.ep
    tokens = data.draw(st.lists(st.integers(1, 4000), min_size=slots, max_size=slots))
    groups = [tokens[start : start + size] for start in range(0, slots, size)]
    order = data.draw(st.permutations(range(len(groups))))
    inside = data.draw(st.permutations(range(size)))
    renamed = [groups[group][member] for group in order for member in inside]
    pricer = compile_pricer(model, topology, step, coefficients=table)
    before, after = (
        [
            (price.expected_bytes, price.bound_bytes, price.retained_bytes)
            for price in pricer.price_ranks(Batch(rank_tokens=laid))
        ]
        for laid in (tokens, renamed)
    )
    assert after == [before[group * size + member] for group in order for member in inside]


@given(models(), topologies(), steps(), TABLES, st.data(), st.booleans())
def test_folded_forms_equal_the_sum_of_terms(model, topology, step, table, data, accumulating):
    """Reference: the sum of every term at every layer, which folding leaves out.

    Layers that are alike are priced by a few linear forms, of three counts where ranks are alike
    too and of six elsewhere; the same figures and lines follow when each layer is summed by itself.
    """
    batch = data.draw(calls(topology))
    pricer = compile_pricer(model, topology, step, coefficients=table)
    figures = pricer.figures(lay_out(batch, topology), 0, accumulating)
    for alike in dict.fromkeys(figures):
        if not alike.work.tokens:
            continue
        settings = alike.margin_milli, alike.growth, alike.call_bytes
        rows, more, layers = alike.work.rows, alike.work.more_rows, alike.work.layers
        apart = alike.work._replace(rows=(rows,) * layers, more_rows=(more,) * layers)
        summed = Figures(alike.compiled, apart, *settings)
        for folded in (alike, Figures(alike.compiled, alike.work, *settings)):
            for phase in Phase:
                assert summed.expected(phase) == folded.expected(phase)
                assert summed.bound(phase) == folded.bound(phase)
            assert summed.demand == folded.demand == folded.demand_once
            assert summed.expected_peak == folded.expected_peak
            assert summed.persistent_bound == folded.persistent_bound
            assert _but_layers(summed.stages) == _but_layers(folded.stages)
            for phase in Phase:  # read once more, now that stages are known
                assert summed.expected(phase) == folded.expected(phase)
        assert summed.stages == alike.stages
        assert list(summed.lines) == list(alike.lines)
        assert summed.terms(summed.peak) == alike.terms(alike.peak)
        for stage in alike.stages:
            of_stage = {line.term: line.expected for line in alike.lines if line[1] is stage[0]}
            assert of_stage == alike.terms(stage)


def _but_layers(stages):
    """Return stages without the layer: equally full ones may be told apart by nothing."""
    return [stage[:3] for stage in stages]


def test_a_topology_names_the_ways_out():
    """Reference: house rule 7, an error names the values and what would be right."""
    with pytest.raises(
        ConfigError, match=r"ep·etp = 3·1 must divide dp·cp·tp = 8·1·1 = 8; ep can be 1, 2, 4, 8"
    ):
        Topology(dp=8, ep=3)
    with pytest.raises(ConfigError, match=r"Topology\.cp must be an integer; got '4'"):
        Topology(cp="4")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="built for ep = 2, the topology has ep = 4"):
        Step(dispatcher="hybridep", dispatcher_ep=2).dispatcher_at(Topology(dp=4, ep=4))
    with pytest.raises(ConfigError, match="needs ep·etp > 1"):
        Step(dispatcher="hybridep").dispatcher_at(Topology())
