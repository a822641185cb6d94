"""A study that runs by itself: what it is, and the entries that start it each day."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from pathlib import Path

from hydra import compose, initialize_config_module
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig

from jobs.launch import SlurmLimits
from pipeline.config import Settings, settings_of
from planner.errors import ConfigError

DRIVER_GIB, RANK_GIB = 2, 2
"""Host memory that the entry asks for: of the sweep, and of each rank that runs beside it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """A study that is run again and again. Made by `of`, which checks it.

    Parameters
    ----------
    study
        Name of a file in ``conf/study``.
    home
        Folder of its sweeps.
    overrides
        Hydra's, for each of its sweeps.
    settings, coefficients, launcher
        What the configuration says: of the whole sweep, its table, and the launcher's name.
    """

    study: str
    home: Path
    overrides: tuple[str, ...]
    settings: Settings
    coefficients: str
    launcher: str

    @classmethod
    def of(cls, study: str, home: Path | None, overrides: Sequence[str]) -> "Schedule":
        """Read a study's configuration.

        Raises
        ------
        ConfigError
            For a study that does not exist, an override that does not hold, or one that the
            schedule sets itself.
        """
        names = [file.name for file in (files("conf") / "study").iterdir()]
        known = sorted(name[:-5] for name in names if name.endswith(".yaml"))
        if study not in known:
            raise ConfigError(f"no study {study!r}; conf/study has {', '.join(known)}")
        config = _composed(study, overrides)
        settings = settings_of(config)
        if isinstance(settings.launcher, SlurmLimits) and not settings.launcher.wait:
            raise ConfigError(
                "launcher.wait=false leaves before there is anything to compare; a schedule waits"
            )
        return cls(
            study=study,
            home=(home or Path("outputs", study)).expanduser().absolute(),
            overrides=tuple(overrides),
            settings=settings,
            coefficients=config.coefficients,
            launcher=config.hydra.runtime.choices.launcher,
        )


def _composed(study: str, overrides: Sequence[str]) -> DictConfig:
    """Compose the configuration of a study's sweep, axes aside."""
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        single = []
        for given, override in zip(overrides, parsed, strict=True):
            name = override.key_or_group
            if name in ("study", "study.name", "out"):
                raise ConfigError(f"{given}: a schedule sets {name} itself")
            if not override.is_sweep_override():
                single.append(given)
            elif name == "coefficients":
                raise ConfigError(f"{given}: a schedule compares under one table")
        with initialize_config_module("conf", version_base="1.3"):
            return compose("config", [f"study={study}", *single], return_hydra_config=True)
    except HydraException as error:
        raise ConfigError(f"the overrides do not hold: {error}") from error


def entries(schedule: Schedule, at: str, limit_min: int) -> str:
    """Return a scrontab entry and a crontab entry that run the schedule each day at ``at``.

    Parameters
    ----------
    at
        ``HH:MM``, in the time zone of the machine that runs it.
    limit_min
        Minutes after which Slurm stops it.

    Raises
    ------
    ConfigError
        When ``at`` is no time of day.
    """
    try:
        time = datetime.strptime(at, "%H:%M")
    except ValueError as error:
        raise ConfigError(f"--at must be HH:MM, such as 02:17; got {at!r}") from error
    call = [sys.executable, "-m", "pipeline.cli", "schedule", schedule.study, "--now"]
    call += ["--out", str(schedule.home)]
    command = shlex.join([*call, "--", *schedule.overrides] if schedule.overrides else call)
    command = f"cd {shlex.quote(str(Path.cwd()))} && {command}"
    when, log = f"{time.minute} {time.hour} * * *", schedule.home / "schedule.log"
    ranks = schedule.settings.launcher.max_ranks if schedule.launcher == "local" else 0
    in_cron = f"{command} >>{shlex.quote(str(log))} 2>&1".replace("%", r"\%")
    return f"""\
# With Slurm: scrontab -e, and add
#SCRON --job-name=peakcast-{schedule.study}
#SCRON --time={limit_min}
#SCRON --ntasks=1 --cpus-per-task={max(1, ranks)} --mem={DRIVER_GIB + RANK_GIB * ranks}G
#SCRON --open-mode=append --output={log}
{when} {command}

# Without: mkdir -p {shlex.quote(str(schedule.home))}; crontab -e, and add
{when} {in_cron}
"""
