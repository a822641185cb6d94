"""The one door from Hydra's configuration to our dataclasses.

A group's keys are the fields of the dataclass it builds, so a key that is none of them is an error
by name; types are checked against the fields, since a dataclass would take ``"4"`` for 4.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from jobs.launch import Limits, SlurmLimits
from jobs.spec import Calls, CellSpec, Meter, Weights, Workload, build
from pipeline.checkpoints import made_for
from planner.errors import ConfigError, require_choice
from planner.model import Model
from planner.step import Step
from planner.topology import Topology

T = TypeVar("T")

OURS = "(the project's own)"
"""Stands for a folder in the cache until the weights that name it are known to be valid."""

LAUNCHERS: dict[str, type[Limits]] = {"local": Limits, "slurm": SlurmLimits}

KINDS = {bool: "true or false", int: "an integer", float: "a number", str: "text"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """A named sweep: its name is that of its results' folder and of its group of W&B runs.

    Parameters
    ----------
    beside
        Cells that no axis reaches, each as the overrides that make it. They run when the command
        line does not choose cells itself.
    """

    name: str
    beside: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Tracker:
    """Whether and how cells become W&B runs.

    Parameters
    ----------
    mode
        ``offline`` (written under ``out``), ``online``, or ``disabled``.
    project
        W&B project of the runs.
    """

    mode: str = "offline"
    project: str = "peakcast"

    def __post_init__(self) -> None:
        require_choice("tracker", "mode", self.mode, ("offline", "online", "disabled"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What all cells of a sweep share and no result depends on.

    ``collect``: start nothing, gather what earlier sweeps have left on a cluster.
    """

    study: Study
    out: str
    launcher: Limits
    tracker: Tracker
    collect: bool

    @property
    def folder(self) -> Path:
        """Where specs, records, logs, W&B runs and the report lie."""
        return Path(self.out).expanduser()


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """What decides a cell's result; a `CellSpec` but for labels and the checkpoint's content."""

    model: Model
    topology: Topology
    step: Step
    weights: dict[str, Any]
    workload: Workload
    calls: Calls
    meter: Meter
    backend: str
    coefficients: str


def settings_of(config: DictConfig) -> Settings:
    """Read what the cells share.

    Raises
    ------
    ConfigError
        For an unknown key or a value of the wrong type, naming both and what would do.
    """
    values = _of_fields(Settings, _plain(config))
    if "launcher" in values:
        values["launcher"] = _launcher_of(values["launcher"])
    return _convert(Settings, values, "")


def _launcher_of(values: Any) -> Any:
    """Make the launcher that ``launcher.cluster`` names; its other keys are that one's fields."""
    if not isinstance(values, Mapping):
        return values
    cluster = values.get("cluster", "local")
    if cluster not in LAUNCHERS:
        raise ConfigError(
            f"launcher.cluster must be one of {', '.join(LAUNCHERS)}; got {cluster!r}"
        )
    given = {name: value for name, value in values.items() if name != "cluster"}
    return _convert(LAUNCHERS[cluster], given, "launcher")


def cell_of(config: DictConfig) -> CellSpec:
    """Read one cell; a checkpoint's digest is still open (see `pipeline.checkpoints.prepare`).

    Raises
    ------
    ConfigError
        For an unknown key, a value of the wrong type, or a value its dataclass refuses.
    """
    values = _plain(config)
    known = {f.name for kind in (Settings, Cell) for f in fields(kind)}
    if unknown := sorted(set(values) - known):
        raise ConfigError(
            f"unknown key {', '.join(unknown)}; the configuration has {', '.join(sorted(known))}"
        )
    cell = _convert(Cell, _of_fields(Cell, values), "")
    parts = {f.name: getattr(cell, f.name) for f in fields(Cell)}
    parts["weights"] = _weights_of(cell)
    return CellSpec(topology_name=topology_name(cell.topology), **parts)


def _weights_of(cell: Cell) -> Weights:
    """Read a cell's weights; where they need a folder and name none, it is the cache's."""
    values = dict(cell.weights)
    made = values.get("path") is None and (
        values.get("kind") == "pretrained" or values.get("routing") == "measured"
    )
    if made:
        values["path"] = OURS
    weights = _convert(Weights, values, "weights")
    if made:
        return replace(weights, path=str(made_for(cell.model, weights.kind, weights.seed).folder))
    if weights.path is not None:
        return replace(weights, path=str(Path(weights.path).expanduser().absolute()))
    return weights


def topology_name(topology: Topology) -> str:
    """Name a topology by its ep and cp, and by whatever else those two do not imply."""
    implied = {
        "dp": -(-topology.ep * topology.etp // (topology.cp * topology.tp)),
        "tp": 1,
        "etp": 1,
        "pp": 1,
    }
    degrees = {axis: getattr(topology, axis) for axis in implied}
    extra = "".join(f"_{axis}{n}" for axis, n in degrees.items() if n != implied[axis])
    return f"ep{topology.ep}_cp{topology.cp}{extra}"


def _plain(config: DictConfig) -> dict[str, Any]:
    """Resolve a configuration to plain values, without Hydra's own part."""
    try:
        values = OmegaConf.to_container(
            OmegaConf.masked_copy(config, [str(k) for k in config if k != "hydra"]),
            resolve=True,
            throw_on_missing=True,
        )
    except OmegaConfBaseException as error:
        raise ConfigError(f"the configuration does not resolve: {error}") from error
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _of_fields(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f.name: values[f.name] for f in fields(kind) if f.name in values}


def _convert(kind: type[T], values: Any, where: str) -> T:
    """Make a dataclass from a mapping, each value of its field's type."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} must be a group of keys; got {values!r}")
    hints = get_type_hints(kind)
    prefix = f"{where}." if where else ""
    typed = {
        str(name): _typed(hints[name], value, f"{prefix}{name}") if name in hints else value
        for name, value in values.items()
    }
    return build(kind, typed, where or "the configuration")


def _typed(annotation: Any, value: Any, where: str) -> Any:
    """Return ``value`` as ``annotation`` wants it.

    Raises
    ------
    ConfigError
        Naming the key, the value and the type that it should have.
    """
    if isinstance(annotation, type) and is_dataclass(annotation):
        if isinstance(value, annotation):
            return value
        return _convert(annotation, value, where)
    options = get_args(annotation)
    if NoneType in options:
        if value is None:
            return None
        (annotation,) = (option for option in options if option is not NoneType)
        return _typed(annotation, value, where)
    if Ellipsis in options:
        if not isinstance(value, list):
            raise ConfigError(f"{where} must be a list, such as {where}=[512,512]; got {value!r}")
        return tuple(_typed(options[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if annotation is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if annotation in KINDS and type(value) is not annotation:
        raise ConfigError(
            f"{where} must be {KINDS[annotation]}; got {value!r} ({type(value).__name__})"
        )
    return value
