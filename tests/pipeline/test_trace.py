"""Copy counts derived from traces on fake ranks, against the table written by hand."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.derive import Finding
from planner import Batch, Coefficients, Model, Step, Topology, compile_pricer
from planner.compiled import compile_terms
from planner.local import localize
from planner.moments import Moment

MODEL = Model(
    name="tiny",
    num_layers=4,
    hidden=256,
    vocab=256,
    num_heads=8,
    num_kv_heads=2,
    head_dim=32,
    num_experts=16,
    top_k=4,
    expert_hidden=128,
    shared_expert_hidden=128,
    shared_expert_gate=True,
)
CLASSES = [
    Topology(),
    Topology(cp=2),
    Topology(dp=2, ep=2),
    Topology(cp=2, ep=2),
]


@pytest.fixture(scope="module")
def derived(tmp_path_factory) -> Path:
    """Return the table that ``peakcast trace`` writes."""
    path = tmp_path_factory.mktemp("trace") / "derived.toml"
    program = "import sys; from pipeline.cli import main; main(sys.argv[1:])"
    sizes = ["--layers", "2", "3", "--tokens", "16384", "40960"]
    arguments = ["trace", "--model", "tiny", *sizes, "--out", str(path)]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return path


def copies(table: Coefficients, topology: Topology, moment: Moment) -> dict[str, int]:
    """Return the copies of each term at a moment, in thousandths."""
    compiled = compile_terms(localize(MODEL, topology, Step()), table)
    (stage,) = [stage for stage in compiled.stages if stage.moment is moment]
    return {live.term.name: live.copies_milli for live in stage.live}


@pytest.mark.parametrize("topology", CLASSES, ids=str)
def test_the_derived_table_has_the_copies_written_by_hand(derived, topology):
    """Second implementation: `megatron-local`, read from traces of real ranks, at the peak."""
    traced, by_hand = Coefficients.load(str(derived)), Coefficients.load("megatron-local")
    moment = Moment.RECOMPUTE_FC2
    assert copies(traced, topology, moment) == copies(by_hand, topology, moment)


@pytest.mark.parametrize("topology", CLASSES, ids=str)
def test_the_derived_table_prices_alike(derived, topology):
    """Second implementation: the same batch under the table written by hand."""
    for gradients in (True, False):
        batch = Batch(requests=(4096,) * 8, gradients=gradients)
        expected = [
            compile_pricer(MODEL, topology, Step(), coefficients=table).price(batch).expected_bytes
            for table in (str(derived), "megatron-local")
        ]
        assert expected[0] == expected[1]


@pytest.mark.parametrize(
    ("ratios", "given", "agrees", "copies"),
    [
        ((3.0, 3.001), 3.0, True, 3.0),
        ((2.0, 2.0), 3.0, False, 2.0),  # the traces correct the table
        ((1.25, 1.17), 1.0, False, 1.0),  # no single figure: the declaration is wrong
        ((float("inf"), float("inf")), 0.0, False, 0.0),  # live where nothing should be
    ],
)
def test_a_finding_says_what_the_sizes_agree_on(ratios, given, agrees, copies):
    """By hand."""
    finding = Finding(Moment.RECOMPUTE_FC2, "experts.fc2_outputs", ratios, given)
    assert finding.agrees == agrees
    assert finding.copies == copies
