"""A command line to run the pipeline with ranks that need no model, and records to read."""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
STUBS = ROOT / "tests" / "jobs"

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The stub ranks' module: its `record` makes a record with known numbers."""
    monkeypatch.syspath_prepend(str(STUBS))
    return importlib.import_module("stub_rank")


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Run ``python -m pipeline`` on stub ranks; results in ``tmp_path/out``, W&B off."""

    def run(*overrides: str, entry: str = "ok") -> subprocess.CompletedProcess[str]:
        fixed = [
            f"out={tmp_path / 'out'}",
            f"launcher.entry=stub_rank:{entry}",
            "weights.routing=balanced",  # stub ranks route nothing that could be measured
        ]
        given = {override.partition("=")[0] for override in overrides}
        defaults = [o for o in [*fixed, "tracker=disabled"] if o.partition("=")[0] not in given]
        environment = os.environ | {"PYTHONPATH": f"{STUBS}:{ROOT}"}
        environment |= {"XDG_CACHE_HOME": str(tmp_path)}
        environment |= {"WANDB_API_KEY": "", "COLUMNS": "160", "HOME": str(tmp_path)}
        return subprocess.run(
            [sys.executable, "-m", "pipeline", *defaults, *overrides],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            timeout=120,
            check=False,
        )

    return run
