"""Calls without a backward, as log-probabilities alone ask for: prices against the ledger."""

from dataclasses import replace

import pytest
from fake_worker import spec_of
from test_fake import fake_rank
from test_rank import long_cell, run

from jobs.spec import CellSpec, Meter, Weights, Workload
from jobs.trace import trace
from planner import Step, Topology, compile_pricer
from planner.mixers import LinearAttention
from planner.moments import Moment

TOKENS = 4096
BROAD = {"hidden": 256, "num_heads": 16, "head_dim": 64}
DEEP = {"hidden": 512, "num_heads": 8, "head_dim": 64}


def scored(topology: Topology, model: dict, step: Step, routing: str = "even") -> CellSpec:
    """A cell of `TOKENS` a rank without gradients; ``routing`` is even or skewed by a factor."""
    spec = spec_of("ep2_cp2 hybridep", "fake")
    weights = Weights(name=routing)
    if routing != "even":
        weights = Weights(name=routing, routing="skewed", imbalance=float(routing))
    plain = {"full_attention_interval": 1, "linear_attention": None, "num_experts": 16}
    return replace(
        spec,
        model=replace(spec.model, num_layers=4, **{**plain, **model}),
        topology=topology,
        step=step,
        weights=weights,
        workload=Workload(
            name="scored", requests=(TOKENS * topology.cp,) * topology.dp, gradients=False
        ),
        coefficients="art-traced" if step.adapters == "all" else "megatron-local",
    )


@pytest.mark.parametrize(
    ("model", "cp", "adapters"),
    [
        ({**BROAD, "num_kv_heads": 2}, 1, "experts"),  # fullest as queries are turned
        (
            {**BROAD, "num_kv_heads": 16, "rotary_channels": 32},
            2,
            "experts",
        ),  # as keys are gathered
        ({**BROAD, "num_kv_heads": 16}, 2, "all"),
        ({**BROAD, "num_kv_heads": 16}, 1, "all"),  # at the fused projection
        ({**DEEP, "num_kv_heads": 2}, 1, "all"),  # at the output's projection
        ({**DEEP, "num_kv_heads": 2, "gated_attention": True, "rotary_channels": 16}, 1, "experts"),
        ({**DEEP, "num_kv_heads": 8, "gated_attention": True, "rotary_channels": 16}, 2, "all"),
    ],
)
def test_attention_holds_what_its_declaration_says(model, cp, adapters):
    """Reference: the ledger's fullest place of attention's forward, adapters' rows of 8 apart."""
    spec = scored(Topology(cp=cp), model, Step(adapters=adapters))
    seen = trace(spec)["moments"][str(Moment.FORWARD_MIXER)]
    pricer = compile_pricer(spec.model, spec.topology, spec.step, coefficients=spec.coefficients)
    (price, *_) = pricer.price_ranks(spec.workload.batch())
    expected = price.terms_at(Moment.FORWARD_MIXER)["attention.forward"]
    assert seen["terms"]["attention.forward"] == pytest.approx(expected, rel=0.004)
    assert not seen["unattributed_bytes"]


BUDGET_GIB = 0.08
LINEAR = LinearAttention(key_heads=4, value_heads=8, key_dim=32, value_dim=32, conv_width=4)
CELLS = {
    "all-to-all, crowded and idle": (Topology(dp=2, ep=2), {}, Step(dispatcher="alltoall"), "1.6"),
    "HybridEP and CP": (Topology(cp=2, ep=2), {}, Step(dispatcher="hybridep"), "1.2"),
    "adapters everywhere": (Topology(cp=2), {}, Step(adapters="all"), "even"),
    "state that is not let go of": (
        Topology(cp=2, ep=2),
        {},
        Step(dispatcher="hybridep", release_dispatcher_state=True),
        "even",
    ),
    "linear attention": (
        Topology(cp=2, ep=2),
        {"full_attention_interval": 2, "linear_attention": LINEAR},
        Step(dispatcher="hybridep"),
        "1.9",
    ),
}


@pytest.mark.parametrize("name", CELLS)
def test_it_expects_what_the_ledger_sees(name):
    """Reference: the ledger. A rank of few rows is fullest at its mixer, the others at experts."""
    topology, model, step, routing = CELLS[name]
    spec = scored(topology, model, step, routing)
    for rank in (0, topology.world - 1):
        for record in fake_rank(spec, rank):
            planned, seen = record.planned, record.observed
            at_mixer = planned.peak_moment == "forward_mixer"
            assert at_mixer == (name == "linear attention" and rank > 0)
            assert planned.expected_bytes == pytest.approx(seen.working_set_bytes, rel=0.005)
            assert seen.working_set_bytes <= planned.bound_bytes
            assert seen.held_over_bytes == pytest.approx(planned.held_over_bytes, rel=0.005)
            assert seen.peak_at["phase"] == "forward"


@pytest.mark.parametrize("dispatcher", ["alltoall", "hybridep"])
@pytest.mark.parametrize("routing", ["1.9", "1.2"])
def test_without_adapters_it_is_never_under(dispatcher, routing):
    """Reference: the ledger; a reference policy is the base alone. Nothing of it is unpriced.

    Its rows on their way back are no moment: they are taken to lie beside FC2's inputs, or, with
    HybridEP, beside the tokens that they become.
    """
    topology = Topology(dp=2, ep=2)
    spec = scored(topology, {}, Step(dispatcher=dispatcher, lora_rank=0), routing)
    for rank in range(topology.world):
        for record in fake_rank(replace(spec, meter=Meter()), rank):
            planned, seen = record.planned, record.observed
            assert not planned.unpriced
            assert 0.995 < planned.expected_bytes / seen.working_set_bytes < 1.12
            assert seen.working_set_bytes <= planned.bound_bytes


def test_a_split_call_stays_within_its_bound():
    """Reference: the ledger. A later child's forward lies above what dispatchers hold of the last.

    The mixer of linear attention is fullest before the last layer, which still has its old state.
    """
    model = {"full_attention_interval": 4, "linear_attention": LINEAR, "num_experts": 64}
    whole = scored(Topology(), model, Step(dispatcher="alltoall"), "even")
    spec = replace(
        whole,
        workload=replace(whole.workload, requests=(TOKENS,) * 4),
        meter=replace(whole.meter, budget_gib=BUDGET_GIB),
    )
    for record in fake_rank(spec, 0):
        assert record.planned.decision["children"] == 4
        alone = max(figure["bound"] for figure in record.planned.moments.values())
        assert alone < record.observed.working_set_bytes <= record.planned.bound_bytes
        assert record.planned.bound_bytes <= record.planned.demand_bytes


def test_a_real_rank_computes_the_loss_of_a_call_with_gradients(tmp_path):
    """Reference: the same calls with a backward; and the ledger, at EP1, where routing is certain.

    What is left is the routers' state and the log-probabilities: no graph pins the stream.
    """
    trained = long_cell("ep1_cp1")
    without = replace(trained, workload=replace(trained.workload, gradients=False))
    assert without.key != trained.key
    pairs = [run(spec, tmp_path / str(place)) for place, spec in enumerate((trained, without))]
    for with_backward, forward in zip(*pairs, strict=True):
        for one, other in zip(with_backward, forward, strict=True):
            assert other.outcome == "ok"
            assert other.loss == one.loss
            planned, seen = other.planned, other.observed
            assert seen.working_set_bytes < one.observed.working_set_bytes
            assert seen.working_set_bytes <= planned.bound_bytes
            assert planned.expected_bytes == pytest.approx(seen.working_set_bytes, rel=0.01)
            assert seen.retained_bytes == pytest.approx(planned.retained_bytes, rel=0.05)
            assert seen.held_over_bytes == pytest.approx(planned.held_over_bytes, rel=0.05)
