"""The search for the fewest children, against trying every number from two up."""

from hypothesis import given, settings
from hypothesis import strategies as st

from planner import Batch, MemorySample, Profile, Split, Topology, compile_pricer
from planner.batch import lay_out
from planner.children import child_of, fits, most_children, split
from tests.planner.strategies import TABLES, batches, models, steps, topologies


def linear(pricer, batch, sample):
    """Return the fewest children that fit by trying every number, or ``None``."""
    layout = lay_out(batch, pricer.topology)
    for count in range(2, most_children(layout) + 1):
        children = split(pricer, batch, layout, sample, count)
        if fits(children, sample, together=pricer.coefficients.children_together):
            return count
    return None


@settings(max_examples=150)
@given(
    models(),
    topologies(),
    steps(),
    TABLES,
    st.lists(st.integers(1, 4000), min_size=1, max_size=24),
    st.floats(0.02, 1.1),
    st.booleans(),
    st.data(),
)
def test_the_search_equals_trying_every_number(
    model, topology, step, table, lengths, part, learned, data
):
    """Reference: trying every number of children from two up (uneven and empty replicas too)."""
    pricer = compile_pricer(model, topology, step, coefficients=table)
    batch = Batch(requests=lengths)
    prices = pricer.price_ranks(batch)
    rooms = [data.draw(st.sampled_from([None, int(price.demand_bytes * part)])) for price in prices]
    profiles = ()
    if learned:
        profiles = tuple(
            Profile().learn(price.expected_bytes, price.expected_bytes * 5 // 4) for price in prices
        )
    sample = MemorySample(room_bytes=tuple(rooms), profiles=profiles)
    decision = pricer.admit(batch, sample, allow_unpriced=True)
    whole = child_of(pricer, lay_out(batch, topology), sample)
    together = pricer.coefficients.children_together
    if fits((whole,), sample, together=together):
        assert type(decision).__name__ == "Admit"
        return
    fewest = linear(pricer, batch, sample)
    if fewest is None:
        assert type(decision).__name__ == "Refuse"
    else:
        assert isinstance(decision, Split)
        assert len(decision.children) == fewest
        assert fewest <= most_children(whole.layout)


@given(models(), steps(), TABLES, batches())
def test_a_replica_without_requests_runs_along(model, step, table, batch):
    """Law: with more replicas than requests the empty ones hold nothing and decide alike."""
    topology = Topology(dp=4, ep=2)
    pricer = compile_pricer(model, topology, step, coefficients=table)
    one = Batch(requests=batch.requests[:1])
    prices = pricer.price_ranks(one)
    assert sum(price.local_tokens > 0 for price in prices) == 1
    sample = MemorySample(room_bytes=tuple(price.demand_bytes for price in prices))
    assert type(pricer.admit(one, sample, allow_unpriced=True)).__name__ == "Admit"
