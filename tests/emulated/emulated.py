"""Run the product's own commands on the emulated device, as a user would on a real one."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "tests" / "emulated" / "run"
MIB = 2**20


def on_device(*arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """Run Python with ``arguments``; ``settings`` are the device's: ``bytes=…``, EMULATED_BYTES."""
    named = {f"EMULATED_{name.upper()}": str(value) for name, value in settings.items()}
    paths = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'emulated'}"}
    return subprocess.run(
        [str(RUN), *arguments],
        cwd=ROOT,
        env=os.environ | named | paths,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
