"""Rotary positions as configurations tell of them."""

import json

import pytest

from planner import ConfigError, Model


@pytest.mark.parametrize(
    ("changes", "channels", "base"),
    [
        ({}, None, 10_000),
        ({"rope_theta": 1e6}, None, 1_000_000),
        ({"partial_rotary_factor": 0.25, "rope_theta": 500_000.0}, 32, 500_000),
        ({"rope_parameters": {"rope_theta": 10_000_000, "partial_rotary_factor": 0.5}}, 64, 10**7),
        ({"partial_rotary_factor": 1.0}, None, 10_000),
    ],
)
def test_rotary_positions_are_read(golden, changes, channels, base) -> None:
    """Reference: what Hugging Face's models do with these keys: int(head_dim x factor) channels."""
    config = json.loads((golden / "configs" / "qwen3-30b-a3b.json").read_text())
    for key in ("rope_theta", "partial_rotary_factor", "rope_parameters"):
        config.pop(key, None)
    model = Model.from_hf({**config, **changes})
    assert (model.rotary_channels, model.rotary_base) == (channels, base)


@pytest.mark.parametrize("factor", [0, -1, 1.5, "half", True, 0.26])
def test_a_part_that_cannot_be_turned_is_named(golden, factor) -> None:
    """Reference: the documented error; 0.26 of 128 channels are 33."""
    config = json.loads((golden / "configs" / "qwen3-30b-a3b.json").read_text())
    with pytest.raises(ConfigError, match=r"partial_rotary_factor|rotary_channels = 33"):
        Model.from_hf({**config, "partial_rotary_factor": factor})
