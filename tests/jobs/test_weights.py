"""Weights: drawn from names alone, and read from and written to the Hugging Face layout."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_cells import MODEL, cell

from jobs.checkpoint import CheckpointError
from jobs.model.build import build_model
from jobs.model.hf_files import load_pretrained, save_pretrained
from jobs.model.names import global_parameters
from jobs.model.weights import draw_weights, load_weights
from jobs.spec import Weights
from jobs.workload import local_batch

pytestmark = pytest.mark.usefixtures("one_rank")

SHARD = "model-00002-of-00002.safetensors"


def built(seed: int = 913, **step: object) -> torch.nn.Module:
    spec = cell(**step)
    model = build_model(spec)
    draw_weights(model, seed)
    return model


def values(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {named.name: named.data for named in global_parameters(model)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint in two files with an index."""
    save_pretrained(built(), MODEL, tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    path.unlink()
    first = {name: t for name, t in tensors.items() if ".experts." not in name}
    second = {name: t for name, t in tensors.items() if ".experts." in name}
    files = {"model-00001-of-00002.safetensors": first, SHARD: second}
    for name, content in files.items():
        save_file(content, tmp_path / name)
    weight_map = {tensor: name for name, content in files.items() for tensor in content}
    index = {"metadata": {}, "weight_map": weight_map}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def test_a_value_depends_on_seed_and_name_alone():
    """Derivation: two draws agree, another seed differs, and no expert is like another."""
    first, again, other = values(built(1)), values(built(1)), values(built(2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    matrices = [name for name in first if first[name].dim() > 1]
    assert not any(torch.equal(first[name], other[name]) for name in matrices)
    name = "decoder.layers.0.mlp.experts.fc1.weight"
    assert not torch.equal(first[f"{name}.0"], first[f"{name}.1"])


def test_every_parameter_is_set():
    """Derivation: a model filled with NaN has none left after drawing."""
    model = build_model(cell())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    draw_weights(model, 3)
    assert not any(value.isnan().any() for value in values(model).values())


def test_only_adapters_train():
    """Contract of Step.lora_rank: a frozen base; at rank 0 everything trains."""
    adapted = {n for n, p in built().named_parameters() if p.requires_grad}
    assert adapted == {n for n, _ in built().named_parameters() if n.endswith(("lora_a", "lora_b"))}
    full = built(lora_rank=0)
    assert all(p.requires_grad for p in full.parameters())
    assert not any("lora" in name for name, _ in full.named_parameters())


def test_a_checkpoint_comes_back(folder):
    """Round trip: what was saved is what another seed's model holds after loading."""
    saved, model = values(built()), built(seed=5)
    spec = cell(weights=Weights(name="p", kind="pretrained", path=str(folder), seed=913))
    load_weights(model, spec)
    for name, value in values(model).items():
        assert torch.equal(value, saved[name]), name


def test_queries_keys_and_values_are_grouped_as_megatron_groups_them(folder):
    """Published layouts: Hugging Face stacks q, k, v; Megatron interleaves them by group."""
    model = built()
    tensors = load_file(folder / "model-00001-of-00002.safetensors")
    dim, heads = MODEL.head_dim, MODEL.num_heads // MODEL.num_kv_heads
    qkv = values(model)["decoder.layers.1.self_attention.linear_qkv.weight"]
    by_group = qkv.view(MODEL.num_kv_heads, heads + 2, dim, MODEL.hidden)
    wanted = {"q": by_group[:, :heads], "k": by_group[:, heads], "v": by_group[:, heads + 1]}
    for name, part in wanted.items():
        found = tensors[f"model.layers.1.self_attn.{name}_proj.weight"]
        assert torch.equal(found, part.reshape(-1, MODEL.hidden))


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Change the experts' file and make the index agree with it."""
    tensors = load_file(folder / SHARD)
    change(tensors)
    save_file(tensors, folder / SHARD)
    index = folder / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    kept = {n: f for n, f in listed["weight_map"].items() if f != SHARD}
    listed["weight_map"] = {**kept, **dict.fromkeys(tensors, SHARD)}
    index.write_text(json.dumps(listed))


GATE = "model.layers.1.mlp.experts.3.gate_proj.weight"

TENSOR_FAULTS = {
    "missing": (lambda t: t.pop(GATE), rf"lacks {re.escape(GATE)}; .*fetch the checkpoint again"),
    "unexpected": (
        lambda t: t.update({"model.layers.9.extra": torch.zeros(2)}),
        rf"{SHARD} holds model.layers.9.extra, for which the model has no place",
    ),
    "shape": (
        lambda t: t.update({GATE: torch.zeros(5, 128)}),
        rf"{SHARD}: {re.escape(GATE)} has shape \(5, 128\), the model's is \(32, 128\)",
    ),
    "dtype": (
        lambda t: t.update({GATE: torch.zeros(32, 128, dtype=torch.int32)}),
        rf"{SHARD}: {re.escape(GATE)} is I32; only F32, BF16, F16 are read",
    ),
    "double": (
        lambda t: t.update({"lm_head.weight": torch.zeros(256, 128)}),
        r"lm_head.weight is in both .*00001.* and .*00002",
    ),
}


@pytest.mark.parametrize("fault", TENSOR_FAULTS)
def test_a_bad_tensor_is_named(folder, fault):
    """Contract: every tensor is used exactly once, or an error names tensor and file."""
    change, message = TENSOR_FAULTS[fault]
    edit(folder, change)
    with pytest.raises(CheckpointError, match=message):
        load_pretrained(built(), MODEL, folder)


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def unlist(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    del listed["weight_map"][GATE]
    index.write_text(json.dumps(listed))


FILE_FAULTS = {
    "no config": (lambda f: (f / "config.json").unlink(), r"config.json does not exist; give the"),
    "torn config": (write("config.json", "{"), r"config.json is not JSON"),
    "list as config": (write("config.json", "[]"), r"config.json must hold a JSON object"),
    "config is a folder": (
        lambda f: ((f / "config.json").unlink(), (f / "config.json").mkdir()),
        r"config.json cannot be read .*Is a directory",
    ),
    "odd model_type": (write("config.json", '{"model_type": [1]}'), r"model_type \[1\], whose"),
    "quantized": (
        write("config.json", '{"quantization_config": {"quant_method": "fp8"}}'),
        r"config.json says that the weights are quantized; only F32, BF16, F16 are read",
    ),
    "no index": (
        lambda f: (f / "model.safetensors.index.json").unlink(),
        r"has model-00001-of-00002.safetensors and no model.safetensors.index.json",
    ),
    "no weights": (lambda f: (f / SHARD).unlink(), rf"{SHARD} does not exist"),
    "torn weights": (lambda f: (f / SHARD).write_bytes(b"12"), rf"{SHARD} cannot be read"),
    "torn index": (write("model.safetensors.index.json", "{}"), r"index.json has no weight_map"),
    "index disagrees": (unlist, rf"index.json disagrees with the files about {re.escape(GATE)}"),
}


@pytest.mark.parametrize("fault", FILE_FAULTS)
def test_a_bad_file_is_named(folder, fault):
    """Contract: an error names the file and the way out."""
    change, message = FILE_FAULTS[fault]
    change(folder)
    with pytest.raises(CheckpointError, match=message):
        load_pretrained(built(), MODEL, folder)


def test_a_config_of_another_model_is_refused(folder):
    """Contract: config.json must describe the model; all that disagrees is said."""
    other = replace(MODEL, top_k=3, hidden=256)
    with pytest.raises(
        CheckpointError,
        match=r"hidden_size is 128, the model's is 256; num_experts_per_tok is 2, the model's is 3",
    ):
        load_pretrained(built(), other, folder)


def test_positions_may_be_told_in_a_part_of_their_own(folder):
    """Published layouts: Transformers 5 writes ``rope_parameters``, and no ``rope_theta``."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    path.write_text(json.dumps(config))
    load_pretrained(built(), MODEL, folder)
    config["rope_parameters"]["rope_theta"] = 7
    path.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="rope_theta is 7, the model's is"):
        load_pretrained(built(), MODEL, folder)


def test_loading_in_bf16_rounds_and_nothing_else(folder):
    """Derivation: a bf16 model holds the checkpoint's fp32 values rounded to bf16."""
    exact, rounded = built(), built(seed=5, dtype="bf16")
    load_pretrained(rounded, MODEL, folder)
    wanted = values(exact)
    for name, value in values(rounded).items():
        if "lora" not in name:
            assert torch.equal(value, wanted[name].bfloat16()), name


def test_the_loss_of_a_bf16_model_is_near_that_in_fp32():
    """Second implementation: the same weights and tokens in fp32; bf16 has 8 bits of precision."""
    losses = []
    for dtype in ("fp32", "bf16"):
        spec = cell(dtype=dtype)
        model = build_model(spec)
        load_weights(model, spec)
        loss = model(local_batch(spec, 0, 0))
        loss.backward()
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=2e-2)
