"""What a sweep says while it runs."""

import pytest
from hydra import compose, initialize_config_module
from rich.console import Console

from jobs.event import Event
from jobs.spec import CellSpec
from pipeline.config import cell_of
from pipeline.progress import Narrator


def composed(*overrides: str) -> CellSpec:
    with initialize_config_module("conf", version_base="1.3"):
        return cell_of(
            compose("config", ["topology=ep2_cp1", "weights.routing=balanced", *overrides])
        )


def test_cells_of_one_label_have_names_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Reference: by hand; two cells differ in their layers, the third has its label to itself."""
    cells = [
        composed("model.num_layers=2"),
        composed("model.num_layers=8"),
        composed("topology=ep1_cp1"),
    ]
    with Narrator(Console(width=120), cells) as narrator:
        for cell in cells:
            narrator.tell(Event(kind="started", spec=cell, attempt=0), "")
            narrator.tell(Event(kind="ok", spec=cell, attempt=0, seconds=1.0), "all well")
    said = capsys.readouterr().out.splitlines()
    assert said[::2] == [
        "start    ep2_cp1 random model.num_layers=2 (2 ranks)",
        "start    ep2_cp1 random model.num_layers=8 (2 ranks)",
        "start    ep1_cp1 random both (1 ranks)",
    ]
    assert said[3] == "ok       [2/3] ep2_cp1 random model.num_layers=8, 1.0 s: all well"
