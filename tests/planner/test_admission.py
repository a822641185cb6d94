"""Admission: admit, split, refuse; what a split pays; every rank decides alike."""

import pytest

from planner import (
    Admit,
    Batch,
    ConfigError,
    MemorySample,
    Profile,
    Refuse,
    Split,
    Step,
    Topology,
    compile_pricer,
)
from planner.batch import lay_out
from planner.children import child_of, demands_of
from planner.moments import Phase
from tests.conftest import qwen

EP2 = Topology(cp=2, ep=2)


def pricer(topology=EP2, table="art-954"):
    return compile_pricer(qwen(num_layers=8), topology, Step(), coefficients=table)


def rooms(world, size):
    return MemorySample(room_bytes=(size,) * world)


def decide(pricer, batch, sample):
    return pricer.admit(batch, sample, allow_unpriced=True)


def test_no_limit_admits():
    """Reference: design 4, a rank without a limit has room for anything."""
    assert isinstance(decide(pricer(), Batch(tokens=10**7), rooms(2, None)), Admit)


def test_three_children_pay_growth_once():
    """Reference: seed 000, a three-way split pays the grown buffer once, by the published sum.

    By hand: forward keeps every child's boundaries; the fullest child's work and the largest
    growth stand beside them.
    """
    pricing = pricer()
    batch = Batch(requests=[30_000, 30_000, 30_000])
    children = [
        pricing.price(Batch(requests=[30_000]), layout=lay_out(batch, EP2, ((index,),)))
        for index in range(3)
    ]
    backward = [price.peak(Phase.BACKWARD)[1] for price in children]
    kept = [price.persistent_bound_bytes for price in children]
    expected = sum(kept) + (backward[0] - kept[0]) + children[0].growth_bound_bytes
    decision = decide(pricing, batch, rooms(2, expected))
    assert isinstance(decision, Split)
    assert len(decision.children) == 3
    assert decision.demands[0].growth_bytes == children[0].growth_bound_bytes
    assert decision.demands[0].bytes == expected
    less = decide(pricing, batch, rooms(2, expected - 1))
    assert isinstance(less, Refuse)


@pytest.mark.parametrize("table", ["art-954", "megatron-local"])
def test_growth_and_workspace_of_different_children_are_charged_together(table):
    """Reference: seed 000; by hand, on the replica whose fullest child is not the growing one."""
    topology = Topology(dp=2, ep=2)
    pricing = pricer(topology, table)
    batch = Batch(requests=[9000, 600, 500, 4000])
    sample = rooms(2, None)
    children = [
        child_of(pricing, layout, sample)
        for layout in (
            lay_out(batch, topology, ((0,), (2,))),
            lay_out(batch, topology, ((1,), (3,))),
        )
    ]
    growing, fullest = (child.prices[1] for child in children)
    assert growing.growth_bytes > fullest.growth_bytes
    assert fullest.bound_bytes > growing.bound_bytes
    demand = demands_of(children, sample, together=False)[1]
    assert demand.growth_bytes == growing.growth_bound_bytes
    assert demand.bytes >= fullest.bound_bytes + growing.growth_bound_bytes


def test_every_rank_must_fit_its_own():
    """Reference: domain A.7, the largest demand and the least room may be of different ranks."""
    topology = Topology(dp=2, ep=1)
    pricing = pricer(topology)
    batch = Batch(requests=[8000, 2000])
    large, small = pricing.price_ranks(batch)
    fits = MemorySample(room_bytes=(large.demand_bytes, small.demand_bytes))
    assert isinstance(decide(pricing, batch, fits), Admit)
    swapped = MemorySample(room_bytes=(small.demand_bytes, large.demand_bytes))
    refusal = decide(pricing, batch, swapped)
    assert isinstance(refusal, Refuse)
    assert "rank 0 needs" in refusal.reason


def test_all_replicas_run_as_many_children():
    """Law: ranks of different replicas run the same number of children, empty ones included."""
    topology = Topology(dp=2, ep=2)
    pricing = pricer(topology, "megatron-local")
    batch = Batch(requests=[2000, 2000, 1000, 1000, 1000, 1000])
    whole = pricing.price(batch).demand_bytes
    decision = decide(pricing, batch, rooms(2, whole - 1))
    assert isinstance(decision, Split)
    assert all(len(child.layout.replicas) == 2 for child in decision.children)
    ran = [index for child in decision.children for run in child.layout.replicas for index in run]
    assert sorted(ran) == list(range(6))


def test_a_refusal_says_what_is_short_and_the_ways_out():
    """Reference: house rule 7."""
    refusal = decide(pricer(), Batch(requests=[50_000, 50_000]), rooms(2, 10**9))
    assert isinstance(refusal, Refuse)
    assert "short of" in refusal.reason
    assert "also in 2 children" in refusal.reason
    assert any("room for" in way for way in refusal.ways_out)
    single = decide(pricer(), Batch(tokens=100_000), rooms(2, 10**9))
    assert isinstance(single, Refuse)
    assert any("cannot be split" in way for way in single.ways_out)


def test_what_is_unpriced_is_refused_unless_allowed():
    """Reference: design 4.5, a zero in silence is the fault we exist to end."""
    pricing = compile_pricer(
        qwen(), Topology(cp=2, ep=2), Step(dispatcher="deepep"), coefficients="art-shared"
    )
    decision = pricing.admit(Batch(tokens=1000), rooms(2, None))
    assert isinstance(decision, Refuse)
    whats = {part.what for part in decision.unpriced}
    assert {"experts.fc2_outputs", "experts.dispatched_inputs", "buffers.deepep"} <= whats
    alltoall = compile_pricer(
        qwen(), Topology(cp=2, ep=2), Step(dispatcher="alltoall"), coefficients="art-shared"
    )
    assert "experts.fc2_outputs" in {p.what for p in alltoall.price(Batch(tokens=9)).unpriced}


def test_held_over_state_makes_room_before_backward():
    """Reference: seed 000, each layer's dispatch releases the earlier call's state.

    By hand: with the backward peak as the binding one, what is held over comes off the demand.
    """
    pricing = pricer(table="megatron-local")
    batch = Batch(requests=[2000])
    price = pricing.price(batch)
    forward, backward = price.peak(Phase.FORWARD)[1], price.peak(Phase.BACKWARD)[1]
    assert backward > forward
    held = (backward - forward) // 2
    sample = MemorySample(room_bytes=(None, None), held_over_bytes=(held, 0))
    demands = decide(pricing, batch, sample).demands
    assert demands[1].peak_bytes - demands[0].peak_bytes == held


def test_what_was_seen_raises_the_demand_within_the_trust():
    """Reference: domain A.5: seen peaks only raise; a tiny call does not inflate a large one."""
    pricing = pricer(table="megatron-local")
    batch = Batch(requests=[4000])
    price = pricing.price_ranks(batch)[0]
    seen = Profile().learn(price.expected_bytes, 3 * price.expected_bytes)
    sample = MemorySample(room_bytes=(None, None), profiles=(seen, Profile()))
    demands = decide(pricing, batch, sample).demands
    assert demands[0].peak_bytes == 3 * price.expected_bytes
    assert demands[1].peak_bytes == price.bound_bytes
    tiny = Profile().learn(price.expected_bytes // 100, price.expected_bytes)
    assert tiny.floor(price.expected_bytes) == 0


def test_a_sample_must_speak_of_every_rank():
    """Reference: house rule 7."""
    with pytest.raises(ConfigError, match="speaks of 1 ranks; the topology has 2"):
        pricer().admit(Batch(tokens=5), MemorySample(room_bytes=(None,)))


def test_what_only_a_backward_holds_is_not_missing_without_one():
    """Derivation: gradients of a fully trained model are unpriced, and a score makes none."""
    pricer = compile_pricer(qwen(num_layers=2), Topology(), Step(lora_rank=0))
    trained, scored = (pricer.unpriced_of(forward_only=kind) for kind in (False, True))
    missing = {part.what for part in trained}
    assert missing - {part.what for part in scored} == {"weights.gradients"}
    assert missing == {part.what for part in pricer.unpriced}
