"""The small checkpoint: training, its folder, its routing, its name."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from small_cells import MODEL, cell

from jobs.checkpoint import (
    CheckpointError,
    Recipe,
    digest,
    folder_name,
    is_complete,
    read_routing,
)
from jobs.model.build import build_model
from jobs.model.census import busiest_shares, routing_shares
from jobs.model.weights import load_weights
from jobs.pretrain import pretrain
from jobs.spec import Weights
from jobs.text import corpus_hash, text_of
from jobs.workload import text_batch
from planner.errors import ConfigError

RECIPE = Recipe(steps=25, requests=2, length=64, learning_rate=1e-2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("checkpoints") / folder_name(MODEL, RECIPE)
    pretrain(MODEL, path, RECIPE)
    torch.set_num_threads(threads)
    return path


def test_training_learns(folder):
    """Derivation: guessing among 256 bytes costs ln 256 nats; other text costs clearly less."""
    loss = json.loads((folder / "routing.json").read_text())["loss"]
    assert loss["first"] == pytest.approx(math.log(256), rel=0.2)
    assert loss["held_out"] < 0.75 * loss["first"]


def test_the_folder_is_whole_and_alone(folder):
    """Contract: the folder appears by a rename; no scratch is left beside it."""
    assert is_complete(folder)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.json", "model.safetensors", "routing.json"}


def test_a_complete_folder_is_left_alone(folder):
    """Contract: made once."""
    before = digest(folder)
    pretrain(MODEL, folder, RECIPE)
    assert digest(folder) == before


def test_an_incomplete_folder_is_refused(tmp_path):
    """Contract: nothing that may be someone's is overwritten."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="no complete checkpoint; remove it"):
        pretrain(MODEL, tmp_path, RECIPE)


def test_shares_are_those_of_a_census(folder, one_rank):
    """Second implementation: a census of the loaded checkpoint over the same text, in one batch."""
    routing = json.loads((folder / "routing.json").read_text())
    shares = read_routing(folder)
    assert routing["text"] == corpus_hash()
    weights = Weights(name="p", kind="pretrained", path=str(folder))
    spec = cell(weights=weights, dtype="bf16", lora_rank=0)
    model = build_model(spec)
    load_weights(model, spec)
    stride = len(text_of("census")) // 32
    batch = text_batch("census", range(0, 32 * stride, stride), RECIPE.length)
    assert routing["tokens"] == batch.layout.tokens == 32 * 64
    for mine, other in zip(routing_shares(model, [batch]), shares, strict=True):
        assert mine == pytest.approx(other, abs=2e-3)  # bf16 ties may fall otherwise
    assert model.training


def test_a_census_counts_every_pair(one_rank):
    """Conservation: a layer routes tokens x top-k pairs; shares are multiples of one."""
    spec = cell()
    model = build_model(spec)
    load_weights(model, spec)
    shares = routing_shares(model, [text_batch("census", [0], 40)])
    for row in shares:
        counts = [share * 40 * MODEL.top_k for share in row]
        assert sum(row) == pytest.approx(1)
        assert counts == pytest.approx([round(count) for count in counts])


def test_busiest_share():
    """Derivation by hand: four experts on two ranks, the second holds 70 % of the rows."""
    assert busiest_shares([[0.1, 0.2, 0.3, 0.4]], ep=2) == [pytest.approx(1.4)]
    assert busiest_shares([[0.25] * 4], ep=4) == [1.0]


def test_a_name_follows_from_all_that_decides_the_content():
    """Derivation: another model or recipe has another name; the same has the same."""
    name = folder_name(MODEL, RECIPE)
    assert name == folder_name(replace(MODEL), Recipe(**asdict(RECIPE)))
    assert name.startswith("small-")
    others = {folder_name(replace(MODEL, top_k=3), RECIPE), folder_name(MODEL)}
    assert name not in others
    assert len(others) == 2


def test_a_digest_is_of_content(folder, tmp_path):
    """Derivation: a copy has the same digest, a changed byte another."""
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert digest(tmp_path) == digest(folder)
    config = tmp_path / "config.json"
    config.write_text(config.read_text() + " ")
    assert digest(tmp_path) != digest(folder)


def test_a_digest_of_nothing_is_refused(tmp_path):
    """Contract: names the folder and the way out."""
    with pytest.raises(CheckpointError, match=r"holds no \*\.safetensors; make a checkpoint with"):
        digest(tmp_path)


BAD_ROUTING = {
    "missing": (None, "does not exist"),
    "torn": ('{"shares": [[0.5', "holds no shares"),
    "without shares": ("{}", "holds no shares"),
    "a number": ('{"shares": 3}', "must be a list"),
    "negative": ('{"shares": [[1.5, -0.5]]}', "layer 0 must hold one share per expert"),
    "not one": ('{"shares": [[0.5, 0.5], [0.5, 0.6]]}', "layer 1 must hold one share per expert"),
    "ragged": ('{"shares": [[0.5, 0.5], [1.0]]}', "layer 1 must hold one share per expert"),
}


@pytest.mark.parametrize("fault", BAD_ROUTING)
def test_bad_routing_is_named(tmp_path, fault):
    """Contract: an error names the file, what is wrong and the way out."""
    text, message = BAD_ROUTING[fault]
    if text is not None:
        (tmp_path / "routing.json").write_text(text)
    with pytest.raises(CheckpointError, match=rf"routing\.json.*{message}.*measure it again"):
        read_routing(tmp_path)


@pytest.mark.parametrize("field", ["steps", "requests", "length"])
def test_a_recipe_of_nothing_is_refused(field):
    """Contract: names the field and the value."""
    with pytest.raises(ConfigError, match=rf"Recipe\.{field} must be at least .; got 0"):
        Recipe(**{field: 0})
