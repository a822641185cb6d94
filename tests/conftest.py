"""Models that tests price, from the same files that users name; and what tests need to run."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from planner import LinearAttention, Model

# a law is no stopwatch, and what holds here must hold on the next machine: the same draws each time
settings.register_profile("peakcast", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=2000)  # --hypothesis-profile=search
settings.load_profile("peakcast")

for name in (
    *("COLUMNS", "LINES", "HYDRA_FULL_ERROR"),  # what a command prints
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),  # who a rank is
):
    os.environ.pop(name, None)  # a test says itself what it means, whoever runs it

GOLDEN = Path(__file__).parent / "golden"

QWEN = {
    "name": "qwen3_6_35b_a3b",
    "num_layers": 40,
    "hidden": 2048,
    "vocab": 248_320,
    "num_heads": 16,
    "num_kv_heads": 2,
    "head_dim": 256,
    "num_experts": 256,
    "top_k": 8,
    "expert_hidden": 512,
    "shared_expert_hidden": 512,
    "shared_expert_gate": True,
    "gated_attention": True,
    "full_attention_interval": 4,
    "linear_attention": LinearAttention(
        key_heads=16, key_dim=128, value_heads=32, value_dim=128, conv_width=4
    ),
}
"""Qwen3.6-35B-A3B: geometry from the published certificate and model configuration."""


STUB = Model(
    name="stub",
    num_layers=2,
    hidden=64,
    vocab=256,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    num_experts=4,
    top_k=2,
    expert_hidden=32,
)
"""Sizes for ranks that run nothing."""


def qwen(**changes: object) -> Model:
    """Return Qwen3.6-35B-A3B, with fields changed."""
    return Model(**{**QWEN, **changes})  # type: ignore[arg-type]


@pytest.fixture
def golden() -> Path:
    """Folder of published figures."""
    return GOLDEN


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of tests that need more than the package and its dependencies."""
    config.addinivalue_line(
        "markers",
        "needs(what): skipped where this machine lacks it; failed there if PEAKCAST_REQUIRE, a "
        "list with commas, names it",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Turn the skip of a test whose need must be met into a failure that says the reason."""
    report = yield
    required = set(filter(None, os.environ.get("PEAKCAST_REQUIRE", "").split(",")))
    needed = {mark.args[0] for mark in item.iter_markers("needs")} & required
    if report.skipped and needed and not hasattr(report, "wasxfail"):
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"PEAKCAST_REQUIRE names {', '.join(sorted(needed))}, yet: {why}"
    return report
