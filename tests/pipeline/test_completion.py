"""Tab completion of the sweep's command, by the script that Hydra installs in bash."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("topology=ep2", ["topology=ep2_cp1", "topology=ep2_cp2"]),
        ("calls=", ["calls=both", "calls=cold", "calls=pair", "calls=warm"]),
        ("meter.b", ["meter.budget_gib="]),
    ],
)
def test_bash_completes(tmp_path: Path, typed: str, offered: list[str]) -> None:
    """Reference: the files of conf/ and bash's own completion variables."""
    command = tmp_path / "peakcast-sweep"  # as pip writes a console script
    command.write_text(
        f"#!{sys.executable}\nimport sys\nfrom pipeline.__main__ import main\nsys.exit(main())\n"
    )
    command.chmod(0o755)
    line = f"peakcast-sweep {typed}"
    script = (
        'eval "$(peakcast-sweep -sc install=bash)"\n'
        f'COMP_LINE="{line}" COMP_POINT={len(line)} COMP_CWORD=1\n'
        'hydra_bash_completion; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": path},
        check=False,
    )
    assert done.stdout.split() == offered, done.stderr
