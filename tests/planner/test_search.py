"""The largest batch that fits, the topologies that do, and the ways out of a refusal."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import (
    Admit,
    Batch,
    ConfigError,
    LiveState,
    MemorySample,
    Refuse,
    Step,
    Topology,
    compile_pricer,
)
from planner.search import every_topology, largest_batch, topologies
from tests.conftest import qwen
from tests.planner.strategies import TABLES, batches, models, steps
from tests.planner.strategies import topologies as drawn_topologies


def decide(pricer, batch, sample):
    return pricer.admit(batch, sample, allow_unpriced=True)


@settings(max_examples=60)
@given(models(), drawn_topologies(), steps(), st.sampled_from(["art-954", "megatron-local"]))
def test_the_largest_batch_fits_and_one_step_more_does_not(model, topology, step, table):
    """Law: what is returned is admitted whole; a step of one chunk a rank more is not."""
    pricer = compile_pricer(model, topology, step, coefficients=table)
    room = pricer.price(Batch(requests=[5000] * topology.dp)).demand_bytes
    sample = MemorySample.alike(topology.world, room)
    batch = pricer.largest_batch(sample)
    assert batch is not None
    assert isinstance(decide(pricer, batch, sample), Admit)
    longer = [length + (2 * topology.cp if topology.cp > 1 else 1) for length in batch.requests]
    assert not isinstance(decide(pricer, Batch(requests=longer), sample), Admit)
    assert batch.requests[0] >= 5000 - 2 * topology.cp


def test_no_room_has_no_largest_batch_and_no_limit_is_an_error():
    """Reference: the docstring of largest_batch."""
    pricer = compile_pricer(qwen(), Topology(cp=2, ep=2), Step(), coefficients="art-954")
    assert largest_batch(pricer, MemorySample.alike(2, 1)) is None
    with pytest.raises(ConfigError, match="no rank has a limit"):
        largest_batch(pricer, MemorySample.alike(2, None))


@pytest.mark.parametrize("world", [1, 2, 4, 6, 8])
def test_every_topology_of_a_world_is_tried_once(world):
    """Reference: by trying all degrees that a Topology accepts."""
    found = list(every_topology(world))
    assert len(found) == len(set(found))
    degrees = range(1, world + 1)
    count = 0
    for pp in degrees:
        for cp in degrees:
            for tp in degrees:
                for dp in degrees:
                    if pp * cp * tp * dp != world:
                        continue
                    stage = dp * cp * tp
                    count += sum(stage % (ep * etp) == 0 for ep in degrees for etp in degrees)
    assert len(found) == count
    assert {topology.world for topology in found} == {world}


def test_topologies_come_best_first_and_their_demand_is_the_price():
    """Law: fewest unpriced parts, then fitting, then least demand; the demand is the price's."""
    model = qwen(num_layers=8)
    batch = Batch(requests=[20_000] * 8)
    found = topologies(model, 8, 20 * 10**9, batch=batch, coefficients="art-shared")
    keys = [(p.unpriced_parts, not p.fits, p.demand_bytes) for p in found]
    assert keys == sorted(keys)
    assert {p.fits for p in found} == {True, False}
    for placement in found[::17]:
        pricer = compile_pricer(model, placement.topology, Step(), coefficients="art-shared")
        assert placement.demand_bytes == pricer.price(batch).demand_bytes
        assert placement.unpriced_parts == len(pricer.price(batch).unpriced)


def test_a_model_that_cannot_be_divided_is_an_error():
    """Reference: house rule 7."""
    with pytest.raises(ConfigError, match="has one topology"):
        topologies(qwen(), 2, 10**9, batch=Batch(rank_tokens=[5, 5]))


def ways(refusal):
    return {way.setting: way for way in refusal.ways}


def test_the_ways_out_are_numbered_and_each_one_works():
    """Law: every way out that names a value admits the batch with that value, one less does not."""
    topology, step = Topology(cp=2), Step()
    model = qwen(num_layers=8)
    pricer = compile_pricer(model, topology, step, coefficients="art-954")
    batch = Batch(rank_tokens=[105_200, 89_553])
    sample = MemorySample.alike(2, 20 * 10**9)
    refusal = decide(pricer, batch, sample)
    assert isinstance(refusal, Refuse)
    assert [way[:2] for way in refusal.ways_out] == [
        f"{i}." for i in range(1, len(refusal.ways) + 1)
    ]
    assert refusal.binding.rank == 0
    term, moment, size = refusal.binding_term
    assert (term, str(moment)) == ("experts.fc2_outputs", "recompute_fc2")
    assert size == 3 * 105_200 * 8 * 2048 * 2
    found = ways(refusal)
    roomy = MemorySample.alike(2, found["room_bytes"].value)
    assert isinstance(decide(pricer, batch, roomy), Admit)
    tight = MemorySample.alike(2, found["room_bytes"].value - 1)
    assert isinstance(decide(pricer, batch, tight), Refuse)
    most = found["tokens"].value
    scaled = [share * most // batch.tokens for share in batch.rank_tokens]
    assert abs(sum(scaled) - most) <= 2
    assert isinstance(decide(pricer, Batch(rank_tokens=scaled), sample), Admit)
    wider = Topology(cp=found["cp"].value)
    shares = [-(-batch.tokens // wider.cp)] * wider.cp
    there = compile_pricer(model, wider, step, coefficients="art-954")
    room = MemorySample.alike(wider.cp, 20 * 10**9)
    assert isinstance(decide(there, Batch(rank_tokens=shares), room), Admit)


def test_a_higher_ep_has_the_room_that_its_experts_leave():
    """By hand: of 256 experts of 3 x 2048 x 512 in 8 layers, EP2 holds half: 6.44 GB less in bf16.

    Adapters and their gradients are halved as well, their states are not: half the ranks share.
    """
    model, step = qwen(num_layers=8), Step(lora_rank=8)
    pricer = compile_pricer(model, Topology(cp=2), step, coefficients="art-954")
    there = compile_pricer(model, Topology(cp=2, ep=2), step, coefficients="art-954")
    freed = pricer.static(0).resident_bytes - there.static(0).resident_bytes
    experts = 128 * 3 * 2048 * 512 * 8
    adapters = 128 * 8 * (2 * 2048 + 3 * 512) * 8
    assert freed == experts * 2 + adapters * (2 + 4)  # of the states each EP rank has as many
    batch = Batch(tokens=40_000)
    need = there.price(batch).demand_bytes
    for room, fits in ((need - freed, True), (need - freed - 1, False)):
        refusal = decide(pricer, batch, MemorySample.alike(2, room))
        assert isinstance(refusal, Refuse)
        assert ("ep" in ways(refusal)) == fits


def test_a_held_buffer_is_room_for_the_one_that_is_made_again():
    """Law: a way out fits with a buffer held as it does without one and that much more room."""
    pricer = compile_pricer(
        qwen(num_layers=8), Topology(cp=2, ep=2), Step(), coefficients="art-954"
    )
    batch = Batch(tokens=194_752)
    held = pricer.price(batch).buffer_tokens
    room = pricer.price(batch, LiveState(held_tokens=held)).demand_bytes * 2 // 3
    warm, cold = (
        decide(pricer, batch, sample)
        for sample in (
            MemorySample.alike(2, room, held_tokens=held),
            MemorySample.alike(2, room + pricer.buffer_bytes(held)),
        )
    )
    assert ways(warm)["cp"] == ways(cold)["cp"]


def test_a_smaller_head_chunk_is_a_way_out_where_the_head_binds():
    """By hand: 512 tokens of 248,320 logits take 7 x 254.3 MB; half of it is the largest chunk."""
    pricer = compile_pricer(qwen(num_layers=2), Topology(), Step(), coefficients="art-954")
    batch = Batch(tokens=1024)
    price = pricer.price(batch)
    assert price.peak_moment == "backward_head"
    refusal = decide(pricer, batch, MemorySample.alike(1, price.demand_bytes - 1))
    assert isinstance(refusal, Refuse)
    assert ways(refusal)["head_chunk"].value == 256


def test_recomputing_is_a_way_out_only_where_it_is_priced_and_fits():
    """Reference: the docstring of ways_of; nothing is promised that no table prices."""
    step = Step(recompute="none")
    pricer = compile_pricer(qwen(num_layers=8), Topology(), step, coefficients="megatron-te")
    batch = Batch(tokens=65_536)
    full = pricer.remade(step=Step(recompute="full"))
    room = full.price(batch).demand_bytes
    assert room < pricer.price(batch).demand_bytes
    refusal = decide(pricer, batch, MemorySample.alike(1, room))
    assert isinstance(refusal, Refuse)
    assert ways(refusal)["recompute"].value == "full"


@settings(max_examples=40)
@given(models(), drawn_topologies(), steps(), TABLES, batches(), st.floats(0.001, 0.9))
def test_a_refusal_is_always_told_with_its_numbers(model, topology, step, table, batch, part):
    """Law: whatever is refused names rank, term and at least the room that it needs."""
    pricer = compile_pricer(model, topology, step, coefficients=table)
    room = int(pricer.price(batch).demand_bytes * part)
    decision = decide(pricer, batch, MemorySample.alike(topology.world, room))
    if isinstance(decision, Refuse):
        assert f"rank {decision.binding.rank} needs" in decision.reason
        assert decision.binding_term[0] in decision.reason
        assert decision.ways[0].value == decision.binding.bytes
