"""The checkpoint of a sweep: made once, by one process of several, and known by its content."""

import subprocess
import sys
from pathlib import Path

import pytest

from jobs.checkpoint import digest, is_complete
from jobs.spec import CellSpec
from pipeline.checkpoints import prepare, routing_of
from pipeline.config import cell_of
from planner.errors import ConfigError
from tests.pipeline.test_config import composed

ROOT = Path(__file__).parents[2]
SMALL = (
    "weights=pretrained",
    *("model.num_layers=1", "model.hidden=32", "model.num_heads=2", "model.num_kv_heads=1"),
    *("model.head_dim=16", "model.num_experts=4", "model.top_k=2", "model.expert_hidden=16"),
    *("model.shared_expert_hidden=16", "model.name=small"),
)

PROGRAM = """
from pipeline.checkpoints import prepare
from tests.pipeline.test_checkpoints import small
print("digest", prepare([small()], print)[0].weights.digest)
"""


def small(*overrides: str) -> CellSpec:
    return cell_of(composed(*SMALL, *overrides))


def test_two_sweeps_at_once_make_one_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reference: jobs.checkpoint.digest over the files, which a torn folder would not have."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    command = [sys.executable, "-c", PROGRAM]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(2)
    ]
    said = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sum("training the small small checkpoint" in text for text in said) == 1
    folder = Path(str(small().weights.path))
    assert is_complete(folder)
    for text in said:
        assert text.split()[-2:] == ["digest", digest(folder)]
    told: list[str] = []
    (cell,) = prepare([small()], told.append)
    assert told == [], "the second sweep finds it made"
    assert cell.weights.digest == digest(folder)
    (copied,) = prepare([small(f"weights.path={folder}")], told.append)
    assert copied.key == cell.key, "the place of the files is no part of the key"


def test_a_folder_of_ones_own_must_hold_a_checkpoint(tmp_path: Path) -> None:
    """Reference: the message, which names the folder and what it lacks."""
    cell = cell_of(composed("weights=pretrained", f"weights.path={tmp_path}"))
    with pytest.raises(ConfigError, match=rf"{tmp_path} is not whole; it needs config"):
        prepare([cell], lambda _: None)


def test_weights_whose_routing_is_taken_for_balanced_need_nothing() -> None:
    """Reference: the cell itself, unchanged."""
    cell = cell_of(composed("weights=random", "weights.routing=balanced"))
    assert prepare([cell], pytest.fail) == [cell]


def test_the_routing_of_random_weights_is_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reference: by hand, a share for each expert and layer; a second look finds it made."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told: list[str] = []
    (cell,) = prepare([small("weights=random")], told.append)
    assert len(told) == 1
    shares = routing_of(cell).shares
    assert shares is not None
    assert [len(row) for row in shares] == [cell.model.num_experts] * cell.model.num_layers
    assert prepare([small("weights=random")], pytest.fail) == [cell]
    assert cell.key != small("weights=random", "weights.routing=balanced").key
