"""Cells of ``study=h200_single`` as spec files: ``python -m pipeline.gpu_cells OUT``.

For a device on a machine where the ranks' packages are and the pipeline's are not. Copy the source
and OUT there, run each spec by hand, copy OUT back, and compare::

    for spec in OUT/specs/*.json; do python -m jobs.rank "$spec" OUT; done
    python -m pipeline.gpu_check --read OUT
"""

import sys
from itertools import product
from pathlib import Path

from hydra import compose, initialize_config_module

from jobs.spec import CellSpec
from pipeline.config import cell_of


def cells(study: str, *overrides: str) -> list[CellSpec]:
    """Return the cells of a study, one for each choice on its axes.

    Raises
    ------
    ConfigError
        For a cell that is bad input.
    """
    with initialize_config_module("conf", version_base="1.3"):
        asked = [f"study={study}", *overrides]
        whole = compose("config", asked, return_hydra_config=True)
        axes = [
            [f"{name}={choice}" for choice in str(choices).split(",")]
            for name, choices in whole.hydra.sweeper.params.items()
        ]
        return [cell_of(compose("config", [*asked, *chosen])) for chosen in product(*axes)]


def main(out: Path, study: str) -> None:
    """Write the specs."""
    folder = out / "specs"
    folder.mkdir(parents=True, exist_ok=True)
    for cell in cells(study):
        cell.write(folder / f"{cell.key}.json")


if __name__ == "__main__":
    from pipeline.gpu_check import STUDY

    main(Path(sys.argv[1]), STUDY)
