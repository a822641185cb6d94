"""What a rank runs on: CPUs, fake tensors or a CUDA device; one of them in a process."""

import os
import sys

_chosen: list[str] = []


def chosen() -> str | None:
    """Return the backend installed in this process: ``cpu`` (fake ranks as well) or ``cuda``."""
    return _chosen[0] if _chosen else None


def choose(name: str) -> bool:
    """Claim the process for a backend; return whether it was free: else all is installed.

    Set before anything is installed, since the kernels' package asks when it is imported.

    Raises
    ------
    RuntimeError
        When another backend is installed, or Megatron was imported without one.
    """
    if _chosen:
        if _chosen[0] != name:
            raise RuntimeError(f"this process runs on {_chosen[0]}; start another for {name}")
        return False
    if "megatron.core" in sys.modules:
        raise RuntimeError(
            f"megatron.core was imported before jobs.backend.{name}.install(); "
            "import jobs.model (or call install) first"
        )
    _chosen.append(name)
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # Megatron compiles small functions: run them eager
    return True
