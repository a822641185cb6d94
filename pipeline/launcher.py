"""Hydra's Launcher interface over `jobs.launch`: any sweeper's cells, run on real ranks.

With the first of them go the cells that the study names beside its axes.

A sweeper calls `launch` once or many times; each call runs its cells side by side. A cell that
fails comes back as a completed job whose outcome says so, because a sweeper would otherwise raise
and lose the rest.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from pipeline.config import Cell
from pipeline.sweep import Sweep
from planner.errors import PlannerError

T = TypeVar("T")


class BadInput(SystemExit):
    """Input that no sweep can run on; a SystemExit, since Hydra prints traces of all else."""


class CellLauncher(Launcher):
    """Hands the cells of any sweeper to the `Sweep` whose method is Hydra's task function."""

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Open the sweep: its folder is claimed here, before a sweeper writes to it."""
        sweep = getattr(task_function, "__self__", None)
        assert isinstance(sweep, Sweep), "the application's task function is a Sweep's method"
        self.sweep, self.context, self.config = sweep, hydra_context, config
        _or_bad_input(lambda: sweep.open(config))

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Compose each cell, run them all, and return each one's figure of merit."""
        asked = [list(overrides) for overrides in job_overrides]
        beside = [] if initial_job_idx else self._beside()
        configs = [
            self._compose(overrides, initial_job_idx + index)
            for index, overrides in enumerate([*asked, *beside])
        ]
        merits = _or_bad_input(lambda: self.sweep.run(configs))
        return [
            _returned(config, overrides, merit)
            for config, overrides, merit in zip(configs, asked, merits, strict=False)
        ]

    def _beside(self) -> list[list[str]]:
        """Return the study's cells beside its axes; none where the user has chosen cells."""
        given = list(self.config.hydra.overrides.task)
        chosen = {re.split(r"[=.@]", override.lstrip("+~"))[0] for override in given}
        if chosen & {field.name for field in fields(Cell)}:
            return []
        return [[*given, *overrides] for overrides in self.config.study.get("beside", ())]

    def _compose(self, overrides: list[str], number: int) -> DictConfig:
        config = self.context.config_loader.load_sweep_config(self.config, overrides)
        with open_dict(config):
            config.hydra.job.id = str(number)
            config.hydra.job.num = number
        return config


def _or_bad_input(action: Callable[[], T]) -> T:
    try:
        return action()
    except PlannerError as error:
        raise BadInput(str(error)) from error


def _returned(config: DictConfig, overrides: list[str], merit: Any) -> JobReturn:
    value = JobReturn(overrides=overrides, cfg=config, hydra_cfg=config.hydra)
    value.status = JobStatus.COMPLETED
    value.return_value = merit
    return value
