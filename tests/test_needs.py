"""Tests that need more than the package: skipped without it, failed where it is required."""

import subprocess
import sys
from pathlib import Path

import pytest

HOUSE = Path(__file__).parent / "conftest.py"
SKIPPED = """
import pytest
@pytest.mark.needs("moon")
def test_it():
    pytest.skip("no moon tonight")
"""


@pytest.mark.parametrize(
    ("required", "code", "shown"),
    [
        ("", 0, "1 skipped"),
        ("sun", 0, "1 skipped"),
        ("sun,moon", 1, "PEAKCAST_REQUIRE names moon, yet: Skipped: no moon tonight"),
    ],
)
def test_a_skip_fails_where_its_need_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, required: str, code: int, shown: str
) -> None:
    """Reference: pytest's own exit codes, 0 for skips and 1 for failures."""
    (tmp_path / "conftest.py").write_text(HOUSE.read_text())
    (tmp_path / "test_moon.py").write_text(SKIPPED)
    monkeypatch.setenv("PEAKCAST_REQUIRE", required)
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == code, done.stdout
    assert shown in done.stdout
