"""What the recompute options of `peakcast plan` say together, as fields of a step."""

from typing import Any

from planner.errors import ConfigError
from planner.step import MODULES

COUNTED = ("block", "full")


def recomputed(mode: str, modules: str | None, layers: int | None) -> dict[str, Any]:
    """Return the fields of `planner.step.Step` that the three options stand for.

    Parameters
    ----------
    mode, modules, layers
        ``--recompute``, ``--recompute-modules`` (names with commas) and ``--recompute-layers``.

    Raises
    ------
    ConfigError
        When they do not go together, naming the options that would; a mode or module that does not
        exist is the step's to refuse.
    """
    if modules is not None and mode != "selective":
        raise ConfigError(
            f"--recompute-modules {modules} goes with --recompute selective; got --recompute {mode}"
        )
    if mode == "selective" and not modules:
        raise ConfigError(
            f"--recompute selective needs --recompute-modules, of {', '.join(MODULES)}"
        )
    if layers is not None and mode not in COUNTED:
        raise ConfigError(
            f"--recompute-layers {layers} goes with --recompute block or full; "
            f"got --recompute {mode}"
        )
    if mode == "block" and layers is None:
        raise ConfigError(
            "--recompute block needs --recompute-layers, the checkpointed layers of each stage"
        )
    return {
        "recompute": mode,
        "recompute_modules": tuple(modules.split(",")) if modules else (),
        "recompute_layers": layers or 1,
    }
