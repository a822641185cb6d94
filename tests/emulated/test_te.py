"""Transformer Engine's own layers on the emulated device: the real Python, kernels on the host."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from jobs.record import read_records, record_path
from pipeline.gpu_cells import cells
from tests.emulated.emulated import ROOT, RUN

TIMEOUT = 280
LIBRARY = 32 * 2**20 + 1024
"""A workspace of Transformer Engine on Hopper (``get_cublas_workspace_size_bytes``)."""

FULL = (
    *("model=qwen3_30b_a3b", "model.num_layers=4", "workload=even_16k", "calls=pair"),
    "step.engine=te",
)


def environment() -> dict[str, str]:
    """The caller's, so that a Transformer Engine on its PYTHONPATH is found; and ours."""
    paths = (ROOT, ROOT / "tests" / "emulated", os.environ.get("PYTHONPATH", ""))
    return os.environ | {"PYTHONPATH": ":".join(str(path) for path in paths if path)}


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    command = [str(RUN), "-c", "import transformer_engine.pytorch"]
    found = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(
            "Transformer Engine is not importable on the emulated device: "
            + found.stderr.strip().splitlines()[-1]
        )


def results(world: int, folder: Path) -> list[dict[str, Any]]:
    """Run so many ranks; return what each wrote."""
    worker = str(ROOT / "tests" / "emulated" / "te_ranks.py")
    logs = [folder / f"log.{rank}" for rank in range(world)]
    ranks = []
    for rank, log in enumerate(logs):
        with log.open("w") as file:
            command = [str(RUN), worker, str(rank), str(world), str(folder)]
            ranks.append(
                subprocess.Popen(command, env=environment(), stdout=file, stderr=file, cwd=ROOT)
            )
    try:
        codes = [rank.wait(TIMEOUT) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert codes == [0] * world, "\n".join(log.read_text()[-3000:] for log in logs)
    return [json.loads((folder / f"result.{rank}.json").read_text()) for rank in range(world)]


@pytest.fixture(scope="module")
def one(tmp_path_factory) -> list[dict[str, Any]]:
    """One rank."""
    return results(1, tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> list[dict[str, Any]]:
    """Two ranks."""
    return results(2, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def steps(one, two) -> list[tuple[str, dict[str, Any]]]:
    """Every case of every rank, with a name."""
    return [
        (
            f"rank {rank} of {len(ranks)}, {case['topology']} {case['model']} {case['replicas']}",
            case,
        )
        for ranks in (one, two)
        for rank, result in enumerate(ranks)
        for case in result["cases"]
    ]


def test_the_step_is_that_of_our_own_layers(steps) -> None:
    """Reference: our own layers with the same weights: losses and rows.

    Where every token goes to every expert, so that rounding moves none, gradients too: of adapters
    beside frozen bases, and of all weights where there are none.
    """
    for name, case in steps:
        assert case["te"]["loss"] == pytest.approx(case["own"]["loss"], rel=2e-3), name
        assert sum(case["te"]["rows"]) == pytest.approx(sum(case["own"]["rows"]), rel=0.02), name
        if case["model"] in ("every expert", "trained"):
            assert case["distance"] < 0.02, name


def test_attention_is_as_near_to_fp32_as_our_own(one, two) -> None:
    """Reference: our own attention in fp32: output and gradients of queries, keys and values.

    On two ranks the keys go around Transformer Engine's ring, requests cut as it cuts them.
    """
    for result in (*one, *two):
        for own, theirs in zip(*result["attention"].values(), strict=True):
            assert theirs < 0.006
            assert theirs < 1.5 * own


def test_a_rank_without_tokens_takes_part(two) -> None:
    """Reference: our own layers; one replica has all requests, its peer's experts half the rows."""
    for result in two:
        (case,) = (case for case in result["cases"] if case["replicas"])
        assert case["te"]["loss"] == pytest.approx(case["own"]["loss"], rel=2e-3, abs=1e-9)
        assert min(case["te"]["rows"]) > 0


def test_checkpoints_fill_each_expert_s_parameter(one) -> None:
    """Reference: a checkpoint saved from our own layers; every weight is the same, by name."""
    assert one[0]["loaded"]


def test_workspaces_are_there_before_the_first_call(steps) -> None:
    """Reference: Transformer Engine makes one for each of four streams of grouped products, once.

    Our own layers ran before it, so that cuBLAS has its own already.
    """
    assert steps[0][1]["te"]["workspace"] == 4 * LIBRARY


def test_prices_hold(steps) -> None:
    """Reference: live bytes of Transformer Engine's own tensors, against the planner.

    Where experts are the peak, within 1 %; where attention is, cuDNN's scratch is priced at what
    its graphs' sizes reach at most. Never above the bound; and every storage is some term's.
    """
    for name, case in steps:
        if case["topology"] == "ep2_cp1" or case["model"] == "trained":
            continue  # rows fall as they fall: see the next test; the table has frozen bases only
        seen = case["te"]
        assert not seen["unpriced"], name
        assert seen["unattributed"] == 0, name
        assert seen["observed"] <= seen["bound"], name
        most = 0.15 if case["model"] in ("attention", "gated") else 0.01
        assert -0.01 <= seen["expected"] / seen["observed"] - 1 <= most, name


def test_engines_differ_by_what_is_priced(steps) -> None:
    """Reference: our own layers with the same rows, at the same peak: values that are copied."""
    for name, case in steps:
        if case["topology"] == "ep2_cp1" and not case["replicas"]:
            own, theirs = case["own"], case["te"]
            priced = theirs["expected"] - own["expected"]
            small = 2048  # of where requests begin, and of rounding
            assert theirs["observed"] - own["observed"] == pytest.approx(priced, abs=small), name


def test_full_size_on_the_real_allocator(tmp_path) -> None:
    """Reference: Qwen3-30B-A3B cut to four layers, 16,384 tokens, computing nothing: the ledger's
    figure and PyTorch's own, cold and warm; what a call before has left lies under the warm one."""
    spec = cells("h200_single", *FULL)[0]
    path = tmp_path / f"{spec.key}.json"
    spec.write(path)
    script = str(ROOT / "tests" / "emulated" / "te_full_scale.py")
    command = [str(RUN), script, str(path), str(tmp_path)]
    room = {"EMULATED_BYTES": str(139 * 2**30)}
    done = subprocess.run(
        command, env=environment() | room, capture_output=True, text=True, check=False, cwd=ROOT
    )
    found, _ = read_records(record_path(tmp_path, spec.key, 0, 0))
    assert [record.temperature for record in found] == ["cold", "warm"], done.stdout + done.stderr
    for record in found:
        seen, planned = record.observed, record.planned
        device = seen.device
        allocated = device["allocated_peak_bytes"] - device["allocated_before_bytes"]
        assert seen.working_set_bytes == pytest.approx(planned.expected_bytes, rel=1e-4)
        assert allocated + seen.held_over_bytes == pytest.approx(planned.expected_bytes, rel=0.005)
        assert allocated + seen.held_over_bytes <= planned.bound_bytes
        assert seen.unattributed_bytes == 0


def test_each_term_of_attention_is_seen(steps) -> None:
    """Reference: the storages at the peak, by term: copied values, ring and gradients exactly."""
    for name, case in steps:
        if case["model"] != "attention":
            continue
        seen, planned = case["te"]["terms"], case["te"]["planned"]
        terms = ("attention.values", "attention.ring_keys", "attention.ring_queries")
        for term in (*terms, "attention.queries", "attention.keys", "attention.output"):
            assert seen.get(term, 0) == pytest.approx(planned.get(term, 0), rel=0.01), (name, term)
        assert seen["attention.workspace"] <= planned["attention.workspace"], name
