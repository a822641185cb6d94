"""Hydra's Launcher interface over `jobs.launch`: any sweeper's cells, run on real ranks.

A sweeper calls `launch` once or many times; each call runs its cells side by side. A cell that
fails comes back as a completed job whose outcome says so, because a sweeper would otherwise raise
and lose the rest.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

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
        configs = [
            self._compose(list(overrides), initial_job_idx + index)
            for index, overrides in enumerate(job_overrides)
        ]
        merits = _or_bad_input(lambda: self.sweep.run(configs))
        return [
            _returned(config, list(overrides), merit)
            for config, overrides, merit in zip(configs, job_overrides, merits, strict=True)
        ]

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
