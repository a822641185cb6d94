"""Checkpoints in the layout of Qwen3.6: Gated DeltaNet, gated attention, two spellings."""

import json
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_cells import MODEL, cell

from jobs.checkpoint import CheckpointError
from jobs.model import hf_files
from jobs.model.build import build_model
from jobs.model.hf_files import load_pretrained, save_pretrained
from jobs.model.names import global_parameters
from jobs.model.weights import draw_weights
from planner.mixers import LinearAttention

pytestmark = pytest.mark.usefixtures("one_rank")

MIXER = LinearAttention(key_heads=2, key_dim=12, value_heads=4, value_dim=8, conv_width=4)
HYBRID = replace(MODEL, full_attention_interval=2, gated_attention=True, linear_attention=MIXER)
KEYS, VALUES = 2 * 12, 4 * 8
TEXT = "model.language_model."


def built(seed: int) -> torch.nn.Module:
    model = build_model(cell(model=HYBRID))
    draw_weights(model, seed)
    return model


def values(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {named.name: named.data for named in global_parameters(model)}


def shards(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Write tensors as two files with an index, as large checkpoints come."""
    (folder / "model.safetensors").unlink(missing_ok=True)
    names = sorted(tensors)
    files = {"model-1-of-2.safetensors": names[::2], "model-2-of-2.safetensors": names[1::2]}
    for file, held in files.items():
        save_file({name: tensors[name].contiguous() for name in held}, folder / file)
    weight_map = {name: file for file, held in files.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.fixture
def saved(one_rank, tmp_path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint that lies in ``tmp_path``, in two files."""
    save_pretrained(built(1), HYBRID, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["mtp.fc.weight"] = tensors["model.visual.blocks.0.attn.proj.weight"] = torch.ones(3, 3)
    shards(tensors, tmp_path)
    return tensors


def check_loaded(folder: Path) -> None:
    model, wanted = built(2), values(built(1))
    load_pretrained(model, HYBRID, folder)
    for name, value in values(model).items():
        if ".lora_" not in name:
            torch.testing.assert_close(value, wanted[name], rtol=0, atol=3e-7)


def test_a_checkpoint_comes_back_and_what_is_no_text_is_left(saved, tmp_path: Path) -> None:
    """Round trip, beside a vision tower and a prediction layer; the norms' one costs a rounding."""
    check_loaded(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "qwen3_5_moe"
    assert config["layer_types"] == ["linear_attention", "full_attention"]


def test_text_models_with_an_expert_a_tensor_are_read_as_well(saved, tmp_path: Path) -> None:
    """Published layouts: names without ``language_model``, and each expert with its own tensors."""
    spelled: dict[str, torch.Tensor] = {}
    for name, tensor in saved.items():
        plain = name.replace(TEXT, "model.")
        if plain.endswith("experts.gate_up_proj"):
            for expert, both in enumerate(tensor):
                for part, half in zip(("gate", "up"), both.chunk(2), strict=True):
                    spelled[plain.replace("gate_up_proj", f"{expert}.{part}_proj.weight")] = half
        elif plain.endswith("experts.down_proj"):
            for expert, one in enumerate(tensor):
                spelled[plain.replace("down_proj", f"{expert}.down_proj.weight")] = one
        else:
            spelled[plain] = tensor
    shards(spelled, tmp_path)
    path = tmp_path / "config.json"
    nested = {"model_type": "qwen3_5_moe", "text_config": json.loads(path.read_text())}
    path.write_text(json.dumps(nested))
    check_loaded(tmp_path)


def test_queries_lie_beside_their_gates(saved) -> None:
    """Published layouts: a head's query, then its gate; Megatron: queries, gates, key, value."""
    dim, groups = HYBRID.head_dim, HYBRID.num_kv_heads
    heads = HYBRID.num_heads // groups
    ours = values(built(1))["decoder.layers.1.self_attention.linear_qkv.weight"]
    ours = ours.view(groups, 2 * heads + 2, dim, -1)
    theirs = saved[f"{TEXT}layers.1.self_attn.q_proj.weight"].view(groups, heads, 2, dim, -1)
    assert torch.equal(theirs[:, :, 0], ours[:, :heads])
    assert torch.equal(theirs[:, :, 1], ours[:, heads : 2 * heads])
    keys = saved[f"{TEXT}layers.1.self_attn.k_proj.weight"].view(groups, dim, -1)
    assert torch.equal(keys, ours[:, 2 * heads])


def test_linear_attention_s_projection_is_four(saved) -> None:
    """Published layouts: in_proj_qkv, z, b and a; Megatron: one projection in that order."""
    ours = values(built(1))["decoder.layers.0.self_attention.in_proj.weight"]
    theirs = [
        saved[f"{TEXT}layers.0.linear_attn.in_proj_{n}.weight"] for n in ("qkv", "z", "b", "a")
    ]
    assert [len(part) for part in theirs] == [2 * KEYS + VALUES, VALUES, 4, 4]
    assert torch.equal(torch.cat(theirs), ours)


def test_norms_are_written_less_one_but_for_the_inner_one(saved) -> None:
    """Published model: ``(1 + weight)`` everywhere; Gated DeltaNet's own norm has plain weights."""
    for name in ("norm", "layers.0.input_layernorm", "layers.1.self_attn.q_norm"):
        assert torch.equal(
            saved[f"{TEXT}{name}.weight"], torch.zeros_like(saved[f"{TEXT}{name}.weight"])
        )
    inner = saved[f"{TEXT}layers.0.linear_attn.norm.weight"]
    assert torch.equal(inner, torch.ones_like(inner))


@pytest.mark.usefixtures("saved")
def test_no_more_than_one_tensor_is_held_beside_the_model(tmp_path: Path, monkeypatch) -> None:
    """Reference: weak references to each tensor read: the one before is gone by then."""
    read, last, experts = hf_files._values, [lambda: None], []

    def watched(file, piece):
        assert last[0]() is None
        found = read(file, piece)
        last[0] = weakref.ref(found)
        if piece.part is not None:
            experts.append(found.shape)
        return found

    monkeypatch.setattr(hf_files, "_values", watched)
    load_pretrained(built(2), HYBRID, tmp_path)
    assert set(experts) == {(64, 128), (128, 32)}, "one expert at a time"


@pytest.mark.usefixtures("saved")
def test_another_model_or_layout_is_refused(tmp_path: Path) -> None:
    """Contract: all that disagrees is said; so are the layouts that are known."""
    other = replace(HYBRID, linear_attention=replace(MIXER, value_heads=8))
    with pytest.raises(CheckpointError, match="linear_num_value_heads is 4, the model's is 8"):
        load_pretrained(built(2), other, tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "mixtral"}')
    with pytest.raises(CheckpointError, match=r"'mixtral', .*known: qwen3_moe, qwen3_5_moe"):
        load_pretrained(built(2), HYBRID, tmp_path)
