"""Readers: published configurations read right, the rest is an error that names its key."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import (
    Batch,
    Coefficients,
    ConfigError,
    MemorySample,
    Model,
    Refuse,
    Step,
    Topology,
    compile_pricer,
)
from planner.compiled import TermCompiler
from tests.conftest import GOLDEN

CONFIGS = GOLDEN / "configs"
PUBLISHED = json.loads((GOLDEN / "published_models.json").read_text())["cases"]
COUNTS = json.loads((GOLDEN / "published_counts.json").read_text())["cases"]
FILES = sorted(CONFIGS.glob("*.json"))
MIXTRAL = json.loads((CONFIGS / "mixtral-8x7b.json").read_text())


@pytest.mark.parametrize("case", PUBLISHED, ids=lambda case: case["file"])
def test_published_configurations(case):
    """Reference: model cards and configurations, as the golden file names them."""
    model = Model.from_hf(CONFIGS / case["file"])
    linear = model.num_linear_attention_layers
    read = {
        "total": model.parameters.total,
        "moe_layers": len(model.moe_layers),
        "dense_layers": len(model.dense_layers or ()),
        "linear_layers": linear,
        "attention_layers": model.num_layers - linear,
    }
    for name, value in case.items():
        if name != "file":
            assert read.get(name, getattr(model, name, None)) == value, name


@pytest.mark.parametrize("case", COUNTS, ids=lambda case: case["name"])
def test_published_counts(case):
    """Reference: totals that model cards print, to the parameter."""
    assert Model.from_hf(case["config"]).parameters.total == case["total"]


def test_golden_copies_are_the_shared_ones():
    """Reference: the shared case list; the copies here must not drift from it."""
    shared = Path(__file__).parents[3] / "shared" / "cases" / "configs"
    if not shared.is_dir():
        pytest.skip("the shared case list is not at hand")
    for file in FILES:
        assert json.loads(file.read_text()) == json.loads((shared / file.name).read_text())


def test_a_checkpoint_of_ours_is_a_number():
    """Reference: by hand, hidden 4, FFN 8, one head: 2·(10·4) + 4·4·4 + 3·4·8 + 12."""
    model = Model.from_hf(
        {
            "model_type": "llama",
            "num_hidden_layers": 1,
            "hidden_size": 4,
            "intermediate_size": 8,
            "num_attention_heads": 1,
            "vocab_size": 10,
            "tie_word_embeddings": False,
        }
    )
    assert model.parameters.total == model.parameters.active == 80 + 64 + 96 + 12


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_local_experts": None}, "num_experts_per_tok"),
        ({"num_local_experts": None, "num_experts_per_tok": None, "n_mystery_experts": 8},
         "n_mystery_experts"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok = 9"),
        ({"num_experts_per_tok": None}, "num_experts_per_tok"),
        ({"moe_new_routing_depth": 3}, "moe_new_routing_depth"),
        ({"num_local_experts": "eight"}, "num_local_experts is 'eight'"),
        ({"num_local_experts": True}, "num_local_experts is True"),
        ({"num_local_experts": -8}, "num_local_experts is -8"),
        ({"hidden_size": 4095}, "head_dim"),
        ({"num_key_value_heads": 5}, "num_kv_heads = 5"),
        ({"layer_types": ["mamba"] * 32}, "mamba"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries for 32"),
        ({"layer_types": ["linear_attention"] * 32}, "linear_num_key_heads"),
        ({"moe_intermediate_size": [1024, 2048]}, "moe_intermediate_size differs"),
        ({"mlp_only_layers": [40]}, "mlp_only_layers names layer 40"),
        ({"vocab_size": None}, "vocab_size"),
        ({"attn_layer_period": 8}, "attn_layer_period speaks of layers that are no attention"),
        ({"mamba_d_state": 16}, "mamba_d_state"),
        ({"num_local_experts": None, "num_experts_per_tok": None,
          "mlp_config": {"moe_slots": 4}}, "mlp_config.moe_slots"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_named(change, named):
    """Reference: house rule; a mixture of experts read as dense in silence is the worst fault."""
    with pytest.raises(ConfigError) as error:
        Model.from_hf({**MIXTRAL, **change})
    assert named in str(error.value)


def test_experts_beside_a_nested_configuration_are_named():
    """Reference: house rule; only the nested part is read, experts outside would vanish."""
    inner = {key: value for key, value in MIXTRAL.items() if "expert" not in key}
    outer = {"model_type": "mixtral", "text_config": inner, "num_local_experts": 8}
    with pytest.raises(ConfigError, match="num_local_experts stands beside text_config"):
        Model.from_hf(outer)


@pytest.mark.parametrize(
    ("keys", "dense"),
    [
        ({"first_k_dense_replace": 3}, (0, 1, 2)),
        ({"mlp_only_layers": [0, 5]}, (0, 5)),
        ({"decoder_sparse_step": 2}, (0, 2, 4, 6)),
        ({"interleave_moe_layer_step": 2}, (0, 2, 4, 6)),
        ({"moe_layers": [1, 3]}, (0, 2, 4, 5, 6, 7)),
        ({"moe_layer_freq": [0, 1, 1, 1, 1, 1, 1, 0]}, (0, 7)),
        ({"moe_layer_freq": 2}, (1, 3, 5, 7)),
        ({"mlp_layer_types": ["dense"] + ["sparse"] * 7}, (0,)),
        ({"moe_layers_enum": "4,5,6"}, (0, 1, 2, 3, 7)),
        ({"expert_layer_period": 2, "expert_layer_offset": 1}, (0, 2, 4, 6)),
        ({"moe_layer_start_index": 1, "moe_layer_interval": 1}, (0,)),
    ],
)
def test_which_layers_are_dense(keys, dense):
    """Reference: transformers' own rules for each key, written out for eight layers."""
    model = Model.from_hf({**MIXTRAL, "num_hidden_layers": 8, **keys})
    assert model.dense_layers == dense
    assert len(model.moe_layers) == 8 - len(dense)


def test_what_was_supplied_is_said():
    """Reference: missing key/value heads and tie flag are stated assumptions."""
    model = Model.from_hf(
        {**MIXTRAL, "num_key_value_heads": None, "tie_word_embeddings": None, "model_type": "new"}
    )
    said = " | ".join(model.assumptions)
    assert "num_key_value_heads" in said
    assert "tie_word_embeddings" in said
    assert "'new' is not known" in said


MEGATRON = {
    "num_layers": 16,
    "hidden_size": 1024,
    "ffn_hidden_size": 4096,
    "num_attention_heads": 32,
    "num_moe_experts": 32,
    "moe_router_topk": 4,
    "moe_ffn_hidden_size": 1024,
    "moe_shared_expert_intermediate_size": 1024,
    "moe_layer_freq": "[0]*1+[1]*15",
    "multi_latent_attention": True,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64,
    "v_head_dim": 128,
    "swiglu": True,
    "normalization": "RMSNorm",
    "disable_bias_linear": True,
    "untie_embeddings_and_output_weights": True,
    "mtp_num_layers": 1,
    "vocab_size": 50304,
}


def test_megatron_configuration():
    """Reference: case M01's configuration; the layer's parameters by hand from MLA's matrices."""
    model = Model.from_megatron(MEGATRON)
    assert model.dense_layers == (0,)
    assert model.mtp_layers == 1
    assert not model.norm_bias
    attention = (
        1024 * 1536 + 1536 + 1536 * 32 * 192 + 1024 * 576 + 512 + 512 * 32 * 256 + 32 * 128 * 1024
    )
    moe = 32 * 1024 + 3 * 1024 * 1024 * (32 + 1)
    dense = 3 * 1024 * 4096
    outside = 2 * 50304 * 1024 + 1024
    assert model.parameters.total == outside + 16 * (attention + 2048) + 15 * moe + dense


def test_megatron_dense_with_every_default():
    """Reference: case M03's last stage by hand: 8 layers and the head are 1,947,066,368."""
    model = Model.from_megatron(
        {"num_layers": 8, "hidden_size": 4096, "num_attention_heads": 32, "num_query_groups": 8,
         "vocab_size": 131_200, "untie_embeddings_and_output_weights": True}
    )  # fmt: skip
    assert model.parameters.total - 131_200 * 4096 == 1_947_066_368
    assert abs(1_947_066_368 / 1_947_399_168 - 1) < 2e-4  # what the measured run implies


@pytest.mark.parametrize("text", ["[0]*", "__import__('os')", "[0]*99999999", "[1]*3", "2", "x"])
def test_megatron_patterns_are_never_run(text):
    """Reference: house rule; a pattern that is no list of 16 is an error that names its key."""
    with pytest.raises(ConfigError, match="moe_layer_freq"):
        Model.from_megatron({**MEGATRON, "moe_layer_freq": text if text != "2" else 0})


def test_a_configuration_is_told_by_its_keys():
    """Reference: the two readers; every golden file, and Megatron's keys with and without enum."""
    for file in FILES:
        assert Model.from_file(file) == Model.from_hf(file)
    kind = {"model_type": "ModelType.encoder_or_decoder"}
    assert Model.from_file(MEGATRON) == Model.from_megatron(MEGATRON)
    assert Model.from_file({**MEGATRON, **kind}) == Model.from_megatron(MEGATRON)
    named_like_megatron = {  # a family of Hugging Face: its own model_type tells
        "model_type": "chatglm",
        "num_layers": 2,
        "hidden_size": 64,
        "ffn_hidden_size": 128,
        "num_attention_heads": 4,
        "kv_channels": 16,
        "padded_vocab_size": 100,
        "vocab_size": 100,
    }
    with_hf = Model.from_file(named_like_megatron)
    assert any("chatglm" in said for said in with_hf.assumptions)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"hidden": 256, "num_experts": 4}, ["num_layers is missing", "hidden, num_experts"]),
        ({"num_layers": 4, "hidden_size": 8, "num_attention_heads": 2}, ["none is here"]),
        ({key: value for key, value in MEGATRON.items() if key != "hidden_size"},
         ["hidden_size is missing", "num_moe_experts is here"]),
        ({}, ["it has no key"]),
    ],
)  # fmt: skip
def test_what_is_neither_is_said_with_its_keys(config, named):
    """Reference: house rule; nothing is read by a guess."""
    with pytest.raises(ConfigError, match=r"neither a Hugging Face .* nor a Megatron") as error:
        Model.from_file(config)
    for words in named:
        assert words in str(error.value)


def test_a_megatron_file_is_named_in_its_errors(tmp_path):
    """Reference: house rule; the vocabulary is what a TransformerConfig does not hold."""
    path = tmp_path / "transformer.json"
    path.write_text(json.dumps({**MEGATRON, "vocab_size": None}))
    with pytest.raises(ConfigError, match=r"transformer\.json lacks padded_vocab_size"):
        Model.from_file(path)


def read_or_say_why(read, config):
    """Read a configuration and price it; any exception but ConfigError fails the test."""
    try:
        model = read(config)
    except ConfigError:
        return
    assert model.parameters.total >= model.parameters.active > 0
    for topology, step, table in WAYS:
        try:
            pricer = compile_pricer(model, topology, step, coefficients=table)
        except ConfigError:
            continue
        batch = Batch(rank_tokens=[100] * (topology.dp * topology.cp))
        price = pricer.price(batch)
        assert price.bound_bytes >= price.expected_bytes >= 0
        assert all(line.expected >= 0 for line in price.lines)
        assert pricer.static(topology.world - 1).resident_bytes > 0
        sample = MemorySample.alike(topology.world, price.demand_bytes - 1)
        assert isinstance(pricer.admit(batch, sample, allow_unpriced=True), Refuse)


TRAINED = Step(lora_rank=0, recompute="none", head="whole", device="cuda")
WAYS = [
    (Topology(), Step(), TermCompiler(Coefficients.load("megatron-local"))),
    (Topology(cp=2, ep=2), Step(adapters="all"), TermCompiler(Coefficients.load("art-shared"))),
    (Topology(tp=2, pp=2, dp=2), TRAINED, TermCompiler(Coefficients.load("megatron-te"))),
]
"""One rank, experts and sequences divided, and a trainer's pipeline: each with its table."""

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 300),
    st.integers(),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=5),
    st.lists(st.one_of(st.integers(-2, 9), st.none(), st.text(max_size=2)), max_size=4),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@st.composite
def mutated(draw: st.DrawFn, sources: list[dict]) -> dict:
    """Return a real configuration with some keys dropped, changed or swapped."""
    config = json.loads(json.dumps(draw(st.sampled_from(sources))))
    others = sorted({key for source in sources for key in source})
    for _ in range(draw(st.integers(1, 4))):
        level = config
        if isinstance(config.get("text_config"), dict) and draw(st.booleans()):
            level = config["text_config"]
        key = draw(st.sampled_from([*level, *others] or ["hidden_size"]))
        if draw(st.booleans()):
            level.pop(key, None)
        else:
            level[key] = draw(JUNK)
    return config


@settings(max_examples=400)
@given(mutated([json.loads(file.read_text()) for file in FILES]))
def test_any_configuration_reads_or_says_why(config):
    """Law: a configuration reads and is priced, or raises ConfigError; never another exception."""
    read_or_say_why(Model.from_hf, config)


@settings(max_examples=200)
@given(mutated([MEGATRON]))
def test_any_megatron_configuration_reads_or_says_why(config):
    """Law: as above, for Megatron's fields."""
    read_or_say_why(Model.from_megatron, config)


def test_files_that_are_no_configuration(tmp_path):
    """Reference: house rule; the path stands in the error."""
    for name, text in (("a.json", "{"), ("b.json", "[1]"), ("c.json", "\xff")):
        path = tmp_path / name
        path.write_bytes(text.encode("latin-1"))
        with pytest.raises(ConfigError, match=name):
            Model.from_hf(path)
    with pytest.raises(ConfigError, match="no_such"):
        Model.from_hf(tmp_path / "no_such")
