"""Whose experts and attention a cell asks for: where it may, and what that is to its key."""

from dataclasses import replace

import pytest
from small_cells import cell

from jobs.model.engines import core_attention, routed_experts
from planner.errors import ConfigError

BEFORE = "2750968110aa20c5"
"""Key of the small cell under no table, made before there was a choice of engine."""


def test_transformer_engine_is_refused_without_a_device() -> None:
    """Reference: its kernels are CUDA's alone; CPU ranks and fake ranks run our own layers."""
    ours = cell()
    for backend in ("cpu", "fake"):
        with pytest.raises(ConfigError, match=r"set step\.engine=own"):
            replace(ours, backend=backend, step=replace(ours.step, engine="te"))
    replace(ours, backend="cuda", step=replace(ours.step, engine="te"))


def test_a_choice_that_came_later_leaves_keys_as_they_were() -> None:
    """Reference: the key of the same cell, made by the code before."""
    ours = replace(cell(), coefficients_digest="0" * 16)
    assert ours.key == BEFORE
    theirs = replace(ours, backend="cuda", step=replace(ours.step, engine="te"))
    assert theirs.key != replace(ours, backend="cuda").key


def test_our_own_layers_need_no_transformer_engine() -> None:
    """Reference: this environment, which has none."""
    assert core_attention("own").__name__ == "PackedAttention"
    assert routed_experts("own").__name__ == "GroupedExperts"
