"""Tests on the emulated device; `tests/emulated/up` makes it, and they skip where it is not."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
DEVICE = HERE.parents[1] / ".emulated" / "libnvidia-ml.so.1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder with what it needs."""
    for item in items:
        if item.path.is_relative_to(HERE):
            what = "transformer_engine" if item.path.name == "test_te.py" else "emulated"
            item.add_marker(pytest.mark.needs(what))


@pytest.fixture(autouse=True, scope="session")
def _device() -> None:
    if not DEVICE.exists():
        pytest.skip("there is no emulated CUDA device; tests/emulated/up makes one (5.5 GB)")
