"""peakcast plan and replay, as a shell runs them."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.cli import main
from pipeline.named import named_model, with_layers
from pipeline.plan.recompute import recomputed
from planner import Batch, ConfigError, LiveState, Step, Topology, compile_pricer
from tests.conftest import GOLDEN

ROOT = Path(__file__).parents[2]
QWEN8 = ("--model", "qwen3_6_35b_a3b", "--layers", "8", "--coefficients", "art-954")
TINY = ("--model", "tiny", "--tokens", 4096)
CALLS = json.loads((GOLDEN / "whole_call_art_954.json").read_text())
TRANSFORMER_CONFIG = {
    "num_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_query_groups": 2,
    "kv_channels": 32,
    "ffn_hidden_size": 1024,
    "num_moe_experts": 16,
    "moe_router_topk": 4,
    "moe_ffn_hidden_size": 128,
    "moe_shared_expert_intermediate_size": 128,
    "moe_shared_expert_gate": True,
    "moe_token_dispatcher_type": "alltoall",
    "gated_linear_unit": True,
    "add_bias_linear": False,
    "normalization": "RMSNorm",
    "params_dtype": "torch.bfloat16",
    "vocab_size": 256,
}
"""Keys that matter of a ``TransformerConfig`` as `vars` gives it, and the vocabulary."""


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def peakcast(tmp_path, monkeypatch, capsys):
    """Run ``peakcast`` in an empty folder; its console script is this call and no more."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")

    def run(*arguments):
        with pytest.raises(SystemExit) as left:
            main(list(map(str, arguments)))
        return Done(left.value.code, *capsys.readouterr())

    return run


@pytest.mark.parametrize("case", CALLS["cases"], ids=lambda case: case["name"])
def test_the_seeds_predictions_are_printed(peakcast, case):
    """Reference: seed 000's table of predictions: 29.4, 40.3 and 42.6 GB."""
    degrees = [part for axis, n in case["topology"].items() for part in (f"--{axis}", n)]
    shards = ",".join(map(str, CALLS["rank_tokens"]))
    options = (*QWEN8, *degrees, "--rank-tokens", shards, "--held-tokens", case["held_tokens"])
    done = peakcast("plan", *options)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("to admit")]
    assert f"({case['gigabytes']} GB)" in line
    plan = json.loads(peakcast("plan", *options, "--json").stdout)
    assert round(max(plan["peak_bytes"].values()) / 1e9, 1) == case["gigabytes"]


def test_json_has_every_figure_of_the_price(peakcast):
    """Reference: the price that the same settings have in Python."""
    options = (*QWEN8, "--cp", 2, "--ep", 2, "--rank-tokens", "105200,89553")
    done = peakcast("plan", *options, "--device", "h100", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    model = with_layers(named_model("qwen3_6_35b_a3b"), 8)
    pricer = compile_pricer(
        model, Topology(cp=2, ep=2), Step(device="cuda"), coefficients="art-954"
    )
    price = pricer.price(Batch(rank_tokens=[105_200, 89_553]), LiveState())
    assert plan["expected_bytes"] == price.expected_bytes
    assert plan["bound_bytes"] == price.bound_bytes
    assert plan["growth_bytes"] == price.growth_bytes == 2 * 194_816 * 5440
    assert plan["peak_bytes"] == {
        "forward": price.forward_bytes,
        "backward": price.backward_bytes,
        "retained": price.retained_bound_bytes,
    }
    assert plan["terms"] == [
        {"name": line.term, "moment": line.moment, "bytes": line.expected} for line in price.lines
    ]
    assert plan["unpriced"] == [str(part) for part in price.unpriced]
    assert plan["parameters"]["total"] == pricer.model.parameters.total
    static = pricer.static(0).resident_bytes
    runtime = pricer.outside(static + price.bound_bytes)
    assert plan["static_bytes"] == static
    assert plan["outside_bytes"] == price.growth_bytes + runtime.expected_bytes
    assert plan["room_bytes"] == plan["device_bytes"] - static - runtime.bound_bytes
    assert plan["fits"] is True
    assert plan["device_bytes"] == 81_559 * 2**20


def test_without_gradients_no_backward_is_shown(peakcast):
    """Reference: the price of a batch that says so in Python; what is to admit is its forward."""
    options = (*QWEN8, "--tokens", 90_000, "--forward-only")
    plan = json.loads(peakcast("plan", *options, "--json").stdout)
    model = with_layers(named_model("qwen3_6_35b_a3b"), 8)
    pricer = compile_pricer(model, Topology(), Step(), coefficients="art-954")
    price = pricer.price(Batch(tokens=90_000, gradients=False))
    assert plan["demand_bytes"] == price.demand_bytes == price.forward_bytes
    shown = {line.split()[0] for line in peakcast("plan", *options).stdout.splitlines() if line}
    assert "forward" in shown
    assert "backward" not in shown


def test_expandable_segments_leave_more_room(peakcast):
    """Law: the same plan on the same device, less what fragments take; the rest does not move."""
    options = (*QWEN8, "--cp", 2, "--ep", 2, "--tokens", 90_000, "--device", "h200", "--json")
    fixed, expandable = (
        json.loads(peakcast("plan", *options, *more).stdout) for more in ((), ("--expandable",))
    )
    lost = [
        {line["name"]: line["bound_bytes"] for line in plan["outside"]}["allocator.fragments"]
        for plan in (fixed, expandable)
    ]
    assert expandable["room_bytes"] - fixed["room_bytes"] == lost[0] - lost[1] > 0
    assert expandable["demand_bytes"] == fixed["demand_bytes"]


def needed(peakcast, *options):
    """Return the least device that the batch fits on: it does, and one byte less does not."""
    plan = json.loads(peakcast("plan", *options, "--json").stdout)
    size = plan["device_bytes"] - plan["room_bytes"] + plan["demand_bytes"]
    assert peakcast("plan", *options[:-1], size).returncode == 0
    assert peakcast("plan", *options[:-1], size - 1).returncode == 3
    return size


def test_what_does_not_fit_exits_with_three_and_ways_out(peakcast):
    """Reference: exit codes of the command's docstring."""
    options = (*QWEN8, "--cp", 2, "--rank-tokens", "105200,89553", "--device")
    short = needed(peakcast, *options, "h200") - 10**9
    options = (*options, short)
    done = peakcast("plan", *options)
    assert done.returncode == 3
    assert "does not fit" in done.stdout
    assert "1. give every rank room for" in done.stdout
    plan = json.loads(peakcast("plan", *options, "--json").stdout)
    assert plan["fits"] is False
    assert plan["ways_out"][1]["setting"] == "tokens"


def test_requests_that_fit_in_children_do_not_fit_whole(peakcast, tmp_path):
    """Reference: exit codes; the number of children is told."""
    (tmp_path / "requests.json").write_text("[20000, 20000, 20000, 20000]")
    options = ("--model", "qwen3_30b_a3b", "--layers", 4, "--requests", "requests.json")
    short = needed(peakcast, *options, "--device", "h200") - 10**9
    done = peakcast("plan", *options, "--device", short, "--json")
    assert done.returncode == 3
    plan = json.loads(done.stdout)
    assert (plan["verdict"], plan["fits"]) == ("split", False)
    assert 2 <= plan["children"] <= 4


def test_tokens_are_spread_over_replicas(peakcast):
    """By hand: 1001 tokens over two replicas are 501 and 500."""
    plan = json.loads(
        peakcast("plan", "--model", "tiny", "--dp", 2, "--tokens", 1001, "--json").stdout
    )
    assert plan["rank_tokens"] == [501, 500]
    assert plan["tokens"] == 1001


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--model", "nope", "--tokens", 5), "no model 'nope'; there are qwen3_30b_a3b"),
        (("--model", "tiny"), "give one of --tokens, --rank-tokens, --requests"),
        (("--model", "tiny", "--tokens", 5, "--rank-tokens", "5"), "give one of"),
        (("--model", "tiny", "--rank-tokens", "5,x"), "--rank-tokens is a list"),
        (("--model", "tiny", "--rank-tokens", "5,6"), "has 2 entries; the topology has"),
        (("--model", "tiny", "--tokens", 0), "without any"),
        (("--model", "tiny", "--tokens", 5, "--ep", 3), "ep can be 1"),
        (("--model", "tiny", "--tokens", 5, "--device", "abacus"), "no device 'abacus'"),
        (("--model", "tiny", "--tokens", 5, "--expandable"), "name one with --device"),
        (("--model", "tiny", "--tokens", 5, "--coefficients", "x"), "no coefficient table 'x'"),
        (("--model", "tiny", "--tokens", 5, "--layers", 99), "more than the 4 of tiny"),
        (("--model", "gone.json", "--tokens", 5), "gone.json"),
        (("--model", "gone.yaml", "--tokens", 5), "cannot read gone.yaml"),
        (("--model", "tiny", "--requests", "gone.json"), "cannot read the requests"),
        (("--model", "tiny", "--tokens", 5, "--recompute", "all"), "Step.recompute"),
        ((*TINY, "--recompute", "block"), "--recompute block needs --recompute-layers"),
        ((*TINY, "--recompute", "none"), "megatron-te (0 parts unpriced)"),
        (("--model", "tiny_gdn", "--cp", 3, "--tokens", 99), "key heads of the Gated DeltaNet"),
    ],
)
def test_bad_input_exits_with_two_and_says_what(peakcast, options, says):
    """Reference: house rule 7; no traceback, nothing on standard output."""
    done = peakcast("plan", *options)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout


def test_a_configuration_of_hugging_face_is_a_model(peakcast, tmp_path):
    """Reference: Qwen3-30B-A3B's published 30.5B parameters, from keys of its configuration."""
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "qwen3_moe",
                "hidden_size": 2048,
                "num_hidden_layers": 48,
                "num_attention_heads": 32,
                "num_key_value_heads": 4,
                "head_dim": 128,
                "vocab_size": 151_936,
                "num_experts": 128,
                "num_experts_per_tok": 8,
                "moe_intermediate_size": 768,
                "intermediate_size": 6144,
                "decoder_sparse_step": 1,
                "mlp_only_layers": [],
                "tie_word_embeddings": False,
            }
        )
    )
    plan = json.loads(peakcast("plan", "--model", "config.json", "--tokens", 512, "--json").stdout)
    assert plan["parameters"]["total"] == 30_532_122_624


def test_a_configuration_of_megatron_is_a_model(peakcast, tmp_path):
    """Reference: the same model in Peakcast's own fields, conf/model/tiny.yaml."""
    (tmp_path / "transformer.json").write_text(json.dumps(TRANSFORMER_CONFIG))
    options = ("--tokens", 4096, "--json")
    theirs, ours = (
        json.loads(peakcast("plan", "--model", name, *options).stdout)
        for name in ("transformer.json", "tiny")
    )
    for name in ("terms", "expected_bytes", "bound_bytes", "peak_bytes"):
        assert theirs[name] == ours[name]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("selective", None, None), "needs --recompute-modules, of core_attn, layernorm"),
        (("selective", "", None), "needs --recompute-modules"),
        (("full", "mlp", None), "mlp goes with --recompute selective; got --recompute full"),
        (("none", None, 2), "2 goes with --recompute block or full; got --recompute none"),
        (("selective", "mlp", 2), "2 goes with --recompute block or full"),
        (("block", None, None), "needs --recompute-layers"),
        (("selective", "mlp,gelu", None), "got 'gelu'"),
        (("all", None, None), "must be one of full, selective, block, none"),
    ],
)
def test_recompute_that_does_not_go_together_says_what_would(options, says):
    """Reference: Megatron's arguments; each message holds the option to give instead."""
    with pytest.raises(ConfigError) as error:
        Step(**recomputed(*options))
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("options", "step"),
    [
        (("selective", "--recompute-modules", "core_attn,mlp"),
         Step(recompute="selective", recompute_modules=("core_attn", "mlp"))),
        (("block", "--recompute-layers", 2), Step(recompute="block", recompute_layers=2)),
        (("full", "--recompute-layers", 2), Step(recompute_layers=2)),
    ],
)  # fmt: skip
def test_recompute_is_told_in_megatrons_words(peakcast, options, step):
    """Reference: the price that the same step has in Python."""
    table = ("--coefficients", "megatron-te", "--json")
    plan = json.loads(peakcast("plan", *TINY, "--recompute", *options, *table).stdout)
    pricer = compile_pricer(named_model("tiny"), Topology(), step, coefficients="megatron-te")
    price = pricer.price(Batch(tokens=4096))
    assert plan["expected_bytes"] == price.expected_bytes > 0
    assert {line["name"] for line in plan["terms"]} == {line.term for line in price.lines}


def test_the_page_stands_alone(peakcast, tmp_path):
    """Law: nothing is loaded from elsewhere, and the page is small."""
    done = peakcast("plan", "--model", "tiny", "--tokens", 4096, "--html", "plan.html")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "plan.html").read_text()
    assert len(page) < 50_000
    assert not [mark for mark in ("http:", "https:", "<script", "src=") if mark in page]
    assert "experts.fc2_outputs" in page


def test_a_recorded_decision_replays(peakcast, tmp_path):
    """Reference: exit codes of replay: the same, moved, no report."""
    options = (*QWEN8, "--cp", 2, "--rank-tokens", "105200,89553", "--report", "plan.json")
    assert peakcast("plan", *options).returncode == 0
    same = peakcast("replay", "plan.json")
    assert (same.returncode, same.stdout) == (0, "plan.json: the same, admit\n")
    moved = peakcast("replay", "plan.json", "--coefficients", "megatron-local")
    assert moved.returncode == 1
    assert "the table changed" in moved.stdout
    assert "residual.input_gradients" in moved.stdout
    text = (tmp_path / "plan.json").read_text()
    (tmp_path / "edited.json").write_text(text.replace("105200", "5", 1))
    bad = peakcast("replay", "plan.json", "edited.json")
    assert bad.returncode == 2
    assert "edited after writing" in bad.stderr
    assert "plan.json: the same" in bad.stdout


def test_planning_loads_nothing_heavy():
    """Law: neither torch nor wandb nor hydra is loaded by a whole plan."""
    code = (
        "import sys\n"
        "from pipeline.cli import main\n"
        "try: main(['plan', '--model', 'tiny', '--tokens', '4096', '--json'])\n"
        "except SystemExit as done: assert done.code == 0, done.code\n"
        "heavy = {'torch', 'wandb', 'hydra', 'submitit', 'altair', 'numpy', 'scipy', 'megatron'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
