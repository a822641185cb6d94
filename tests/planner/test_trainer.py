"""Trainers: static bytes, stages, kept activations and what lies outside PyTorch."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import Batch, ConfigError, Model, Moment, Step, Topology, compile_pricer
from planner.coefficients import Coefficients, shipped_tables
from planner.internode import internode_bytes
from planner.outside import communicators, low_latency_bytes, nccl_bytes, outside_bytes
from planner.stages import chunks_of, in_flight
from planner.static import static_bytes
from tests.conftest import GOLDEN, qwen
from tests.planner.strategies import models

PAPER = json.loads((GOLDEN / "activation_paper.json").read_text())
TRAIN = Step(lora_rank=0, recompute="none")


@pytest.mark.parametrize("case", PAPER["cases"], ids=lambda case: case["name"])
def test_activations_of_one_layer_equal_the_paper(case):
    """Reference: arXiv 2205.05198's formulas, to the byte (case M21)."""
    model = Model.from_megatron(PAPER["model"])
    step = Step(
        lora_rank=0,
        recompute=case["recompute"],
        recompute_modules=("core_attn",) if case["recompute"] == "selective" else (),
        attention="unfused",
        sequence=PAPER["sequence"],
        dropout=True,
        sequence_parallel=case["sequence_parallel"],
    )
    pricer = compile_pricer(model, Topology(tp=case["tp"]), step, coefficients="megatron-te")
    price = pricer.price(Batch(requests=[PAPER["sequence"]] * PAPER["microbatch"]))
    kept = [line for line in price.lines if line.moment is Moment.RETAINED]
    layers = sum(line.expected for line in kept if line.term.startswith("kept."))
    assert layers == case["bytes"] * model.num_layers


def dense(layers: int = 4, **changes: object) -> Model:
    sizes = {"num_experts": 0, "top_k": 0, "expert_hidden": 0, "dense_hidden": 32}
    return Model(
        **{"name": "dense", "num_layers": layers, "hidden": 8, "vocab": 100, "num_heads": 4,
           "num_kv_heads": 2, "head_dim": 2, **sizes, **changes}
    )  # fmt: skip


@given(models(), st.sampled_from([1, 2]), st.sampled_from([1, 2, 4]))
def test_stages_add_up_to_the_model(model, pp, ep):
    """Law: over pipeline stages and expert ranks the held parameters are the model's, each once."""
    if pp > model.num_layers:
        pp = 1
    topology = Topology(pp=pp, dp=4, ep=ep)
    held = [static_bytes(model, topology, TRAIN, stage).held for stage in range(pp)]
    total = sum(h.dense for h in held) + ep * sum(h.experts for h in held)
    assert total == model.parameters.total


def test_tensor_parallel_ranks_hold_their_share():
    """Reference: by hand, hidden 8, FFN 32, 4 query and 2 key heads of 2: tp 4 copies keys."""
    held = static_bytes(dense(1), Topology(tp=4), TRAIN).held
    attention = (8 * 8 + 8 * 8) // 4 + 2 * 4 * 8 // 2
    assert held.dense == attention + 3 * 8 * 32 // 4 + 2 * 100 * 8 // 4 + 3 * 8


def test_tied_embeddings_are_copied_to_the_last_stage():
    """Reference: Megatron-core keeps a copy of a tied embedding beside the head."""
    tied = [
        static_bytes(dense(tied_embeddings=True), Topology(pp=2), TRAIN, stage).held.dense
        for stage in (0, 1)
    ]
    untied = [static_bytes(dense(), Topology(pp=2), TRAIN, stage).held.dense for stage in (0, 1)]
    assert tied == untied
    one = static_bytes(dense(tied_embeddings=True), Topology(), TRAIN).held.dense
    assert static_bytes(dense(), Topology(), TRAIN).held.dense - one == 100 * 8


def test_states_of_the_optimizer():
    """Reference: by hand, mixed precision Adam: 2 + 4 + (4 + 8)/dp; moments come with a step."""
    static = static_bytes(dense(), Topology(dp=4), TRAIN)
    count = static.held.dense
    assert static.resident_bytes == 6 * count + 3 * -(-count // 4) * 4
    assert static.resident_bytes - static.first_bytes == 8 * -(-count // 4)
    assert static.loading_bytes - static.resident_bytes == 12 * -(-count // 4)
    whole = static_bytes(dense(), Topology(dp=4), Step(lora_rank=0, distributed_optimizer=False))
    assert whole.resident_bytes == 18 * count


def test_a_frozen_base_has_weights_only():
    """Reference: by hand, adapters of 16 experts on FC1 (H, r), (r, 2F) and FC2 (F, r), (r, H)."""
    model = qwen(num_layers=8)
    static = static_bytes(model, Topology(cp=2, ep=2), Step(lora_rank=8))
    adapters = 8 * 128 * 8 * (2 * 2048 + 3 * 512)
    assert static.held.adapters == adapters
    assert static.of("gradients.main") == 4 * adapters
    assert static.of("optimizer.moments") == 8 * adapters
    assert static.of("weights.experts") == 2 * 8 * 128 * 3 * 2048 * 512


@pytest.mark.parametrize(
    ("topology", "rank", "microbatches", "flying"),
    [
        (Topology(pp=4), 0, 8, (4,)),
        (Topology(pp=4), 3, 8, (1,)),
        (Topology(pp=4), 0, 2, (2,)),
        (Topology(pp=2, vpp=2), 0, 4, (3, 2)),
        (Topology(pp=2, vpp=2), 1, 4, (2, 1)),
        (Topology(pp=4, vpp=2), 0, 1, (1, 1)),
    ],
)
def test_forwards_in_flight(topology, rank, microbatches, flying):
    """Reference: Megatron's schedules written out: warm-up and one, chunk by chunk."""
    assert in_flight(topology, rank, microbatches) == flying


def test_layers_of_stages():
    """Reference: Megatron's order, virtual stage v of rank p is stage v·pp + p; uneven by hand."""
    assert chunks_of(8, Topology(pp=2, vpp=2)) == (((0, 1), (4, 5)), ((2, 3), (6, 7)))
    assert chunks_of(5, Topology(pp=2, stage_layers=(1, 4))) == (((0,),), ((1, 2, 3, 4),))
    assert chunks_of(5, Topology(pp=2)) == (((0, 1, 2),), ((3, 4),))
    with pytest.raises(ConfigError, match="adds up to 5; the model has 6"):
        chunks_of(6, Topology(pp=2, stage_layers=(1, 4)))
    with pytest.raises(ConfigError, match="more than the 3 layers"):
        chunks_of(3, Topology(pp=2, vpp=2))


def test_ranks_of_different_stages_differ():
    """Law: the first of two stages has two microbatches in flight, the last one and the head."""
    pricer = compile_pricer(
        dense(), Topology(pp=2), Step(lora_rank=0, recompute="none", microbatches=4, head="whole"),
        coefficients="megatron-te",
    )  # fmt: skip
    first, last = pricer.price_ranks(Batch(tokens=64))
    terms = [{line.term: line.expected for line in p.lines if line.moment is Moment.RETAINED}
             for p in (first, last)]  # fmt: skip
    assert terms[0]["kept.norms"] == 2 * terms[1]["kept.norms"]
    assert "head.stream" not in terms[0]
    assert pricer.static(0).held.dense == pricer.static(1).held.dense - 8  # the last norm


@st.composite
def trainer_steps(draw: st.DrawFn) -> Step:
    """Steps of trainers, under every kind of recompute."""
    recompute = draw(st.sampled_from(["none", "selective", "block", "full"]))
    modules = ["core_attn", "layernorm", "mlp", "moe", "moe_act", "shared_experts"]
    chosen = draw(st.lists(st.sampled_from(modules), min_size=1, max_size=3, unique=True))
    return Step(
        lora_rank=draw(st.sampled_from([0, 8])),
        recompute=recompute,
        recompute_modules=tuple(chosen) if recompute == "selective" else (),
        recompute_layers=draw(st.integers(1, 3)),
        attention=draw(st.sampled_from(["flash", "unfused"])),
        sequence=draw(st.sampled_from([128, 1024])),
        microbatches=draw(st.integers(1, 8)),
        head=draw(st.sampled_from(["whole", "chunked"])),
        dropout=draw(st.booleans()),
        dispatcher=draw(st.sampled_from(["alltoall", "allgather"])),
    )


@given(models(), trainer_steps(), st.sampled_from([1, 2]), st.integers(1, 4000), st.data())
def test_a_trainer_is_never_cheaper_with_more(model, step, pp, tokens, data):
    """Law: more tokens, layers or expert width, or more in flight, never lowers a rank's bytes."""
    pp = min(pp, model.num_layers)
    tp = data.draw(st.sampled_from([1, 2] if model.num_heads % 2 == 0 else [1]))
    topology = Topology(pp=pp, dp=2, ep=2, tp=tp, cp=data.draw(st.sampled_from([1, 2])))

    def figures(model, step, tokens):
        pricer = compile_pricer(model, topology, step, coefficients="megatron-te")
        prices = pricer.price_ranks(Batch(requests=[tokens, tokens]))
        return [
            (p.expected_bytes, p.bound_bytes, p.retained_bytes, pricer.static(r).resident_bytes)
            for r, p in enumerate(prices)
        ]

    base = figures(model, step, tokens)
    assert all(figure >= 0 for rank in base for figure in rank)
    changed = data.draw(st.sampled_from(["tokens", "layers", "width", "flying"]))
    more = {
        "tokens": lambda: figures(model, step, tokens + 100),
        "layers": lambda: figures(replace(model, num_layers=model.num_layers + pp), step, tokens),
        "width": lambda: figures(
            replace(model, expert_hidden=model.expert_hidden + 64), step, tokens
        ),
        "flying": lambda: figures(model, replace(step, microbatches=step.microbatches + 1), tokens),
    }[changed]()
    for old, new in zip(base, more, strict=True):
        assert all(b >= a for a, b in zip(old, new, strict=True)), changed


def test_a_resume_holds_states_twice_for_a_while():
    """Reference: case O08 (NVIDIA/Megatron-LM#4638): 12,344 + 19,128 MB, 5e9 parameters, dp 2."""
    static = static_bytes(dense(vocab=3_125_000, hidden=800), Topology(dp=2), TRAIN)
    assert static.held.total == pytest.approx(5e9, rel=1e-3)
    transient = static.loading_bytes - static.resident_bytes
    assert transient == pytest.approx((12_344 + 19_128) * 1e6, rel=0.10)


@pytest.mark.parametrize("modules", [("mlp",), ("core_attn",), ("mlp", "core_attn", "layernorm")])
def test_recompute_never_keeps_more(modules):
    """Law: recomputed modules, blocks and layers keep at most what no recompute keeps."""

    def kept(**settings):
        step = Step(lora_rank=0, attention="unfused", sequence=64, **settings)
        pricer = compile_pricer(dense(8), Topology(), step, coefficients="megatron-te")
        return pricer.price(Batch(tokens=64)).retained_bytes

    none = kept(recompute="none")
    blocks = [kept(recompute="block", recompute_layers=n) for n in range(1, 9)]
    assert kept(recompute="selective", recompute_modules=modules) < none
    assert sorted(blocks, reverse=True) == blocks
    assert blocks[0] < none
    assert kept(recompute="full") == blocks[-1]
    assert kept(recompute="full", recompute_layers=4) < kept(recompute="full")


def test_capacity_pads_routed_rows():
    """Reference: a capacity factor of 2 on an even share doubles routed rows, and nothing else."""

    def kept(factor):
        step = Step(lora_rank=0, recompute="none", capacity_factor=factor)
        pricer = compile_pricer(qwen(), Topology(), step, coefficients="megatron-te")
        terms = pricer.price(Batch(tokens=64)).lines
        return {t.term: t.expected for t in terms if t.moment is Moment.RETAINED}

    even, padded = kept(1.0), kept(2.0)
    assert padded["kept.routed"] == 2 * even["kept.routed"]
    assert padded["kept.attention"] == even["kept.attention"]


@pytest.mark.parametrize(
    ("tokens", "gib"), [(2048, 35.55), (1856, 32.21), (1840, 31.94), (1536, 26.66)]
)
def test_low_latency_buffer_of_deepep(tokens, gib):
    """Reference: vllm-project/vllm#57894 (case B01): sizes, and the library's limit of 32 GiB."""
    if gib > 32:
        with pytest.raises(ConfigError, match=rf"{gib} GiB.*use at most 18\d\d tokens"):
            low_latency_bytes(tokens, hidden=5120, num_experts=448)
    else:
        size = low_latency_bytes(tokens, hidden=5120, num_experts=448)
        assert round(size / 2**30, 2) == gib


def test_internode_buffers():
    """Reference: domain facts B.4 added up by hand for M 512, N 2, R 8, H 2048, E 256."""
    m, h, columns, scale = 512, 2048, 128, 64
    expected = m * (h * 2 + 256 * 4 + scale)
    expected += m * (h * 2 + columns * 4 + scale) + 2 * m * (h * 2 + columns * 4)
    expected += 2 * 2 * 8 * (8 + 2)
    assert internode_bytes(m, domains=2, hidden=h, num_experts=256) == expected
    assert internode_bytes(m, domains=1, hidden=h, num_experts=256) == 0


def test_more_tokens_than_queue_pairs_hold_is_an_error():
    """Reference: domain facts B.4: 3M + 1 < 65,536, so 21,844 rows a rank over several nodes."""
    pricer = compile_pricer(qwen(), Topology(dp=16, ep=16), Step(), coefficients="megatron-local")
    largest = pricer.price(Batch(requests=[21_760] * 16)).growth_bytes
    flags = 2 * 2 * 8 * (21_760 // 64 + 2)  # of chunks, not of tokens
    columns, scale = 256 // 2, 64
    inside = 16 * (2 * 2048 + 4 * columns + 256 + scale)
    between = 3 * 2 * 2048 + 2 * 2048 + 256 * 4 + 3 * columns * 4 + 2 * scale
    assert largest == 21_760 * (inside + between) + flags
    with pytest.raises(ConfigError, match=r"at most 21844 tokens a rank.*needs 21888; split"):
        pricer.price(Batch(requests=[21_845] * 16))
    inside = compile_pricer(
        qwen(), Topology(dp=16, ep=16), Step(nvlink_ranks=72), coefficients="megatron-local"
    )
    assert inside.price(Batch(requests=[21_845] * 16)).growth_bytes > 0


def test_communicators():
    """Reference: NVIDIA/nccl#964 (case B05), and the range of verl#6266 and #6408 (case B07)."""
    assert nccl_bytes(2).expected == 544e6
    assert nccl_bytes(4).expected == 688e6
    model = qwen()
    assert communicators(model, Topology()) == ()
    names = dict(communicators(model, Topology(tp=2, pp=2, dp=2, ep=4)))
    assert names == {"world": 8, "tp": 2, "dp·cp": 2, "pp": 2, "tp·pp": 4, "ep": 4, "etp·ep·pp": 8}
    for moe, seen in ((False, 7e9), (True, 9.5e9)):
        found = communicators(model if moe else dense(), Topology(tp=2, pp=2, dp=2, ep=1 + 3 * moe))
        low = sum(nccl_bytes(size).low for _, size in found)
        high = sum(nccl_bytes(size).high for _, size in found)
        assert low <= seen <= high
    call = [nccl_bytes(size) for _, size in communicators(model, Topology(cp=2, ep=2))]
    unexplained = 3.82e9 - 2_119_598_080  # seed 000: growth of a cold call beside its buffers
    assert sum(c.low for c in call) <= unexplained <= sum(c.high for c in call)
    assert sum(c.expected for c in call) == pytest.approx(unexplained, rel=0.30)


def test_outside_only_on_a_device():
    """Reference: a CPU rank has no CUDA context, communicator of NCCL, or segment."""
    topology = Topology(dp=2, ep=2)
    assert outside_bytes(qwen(), topology, Step(), inside=10**9).lines == ()
    lines = outside_bytes(qwen(), topology, Step(device="cuda"), inside=10**9)
    assert lines.low_bytes < lines.expected_bytes < lines.bound_bytes
    assert all(line.source for line in lines.lines)
    wide = outside_bytes(qwen(), topology, Step(device="cuda"), inside=10**9, expandable=True)
    assert wide.bound_bytes < lines.bound_bytes


def test_a_table_that_speaks_of_another_step_says_so():
    """Reference: design 4.5, no zero in silence."""
    for table, step in (("art-nonfull", Step()), ("megatron-local", TRAIN)):
        pricer = compile_pricer(qwen(), Topology(), step, coefficients=table)
        assert pricer.price(Batch(tokens=64)).unpriced
    for asked in ("offload_activations", "fp8"):
        for table in shipped_tables():
            pricer = compile_pricer(qwen(), Topology(), Step(**{asked: True}), coefficients=table)
            assert any(part.what.startswith("beyond.") for part in pricer.unpriced)
    latent = Model.from_megatron(
        {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 64,
         "num_moe_experts": 4, "moe_layer_freq": "[0]*1+[1]*1", "multi_latent_attention": True,
         "kv_lora_rank": 16, "qk_head_dim": 16, "qk_pos_emb_head_dim": 8, "v_head_dim": 16}
    )  # fmt: skip
    pricer = compile_pricer(latent, Topology(), Step(), coefficients="megatron-local")
    whats = {part.what for part in pricer.price(Batch(tokens=64)).unpriced}
    assert {"dense.feed_forward", "attention.latent"} <= whats


def test_every_table_names_known_families_elsewhere():
    """Reference: a family that no term has would hide a mistake."""
    from planner.terms import TERMS

    families = {term.family for term in TERMS}
    for name in shipped_tables():
        assert set(Coefficients.load(name).elsewhere) <= families
