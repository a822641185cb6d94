"""Tests that need a Slurm: any, or the one that `tests/slurm/up` starts."""

import pytest

from tests.slurm.lab import PYTHONPATH, missing


@pytest.fixture(scope="session")
def slurm_missing() -> str:
    """Why no Slurm can be used here; empty if one can."""
    return missing()


@pytest.fixture(autouse=True)
def _on_slurm(
    request: pytest.FixtureRequest, slurm_missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if request.node.get_closest_marker("needs") is None:
        return
    if slurm_missing:
        pytest.skip(slurm_missing)
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
