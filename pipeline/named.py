"""What a command line names: a model, a device, an amount of memory."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import conf
from planner.errors import ConfigError
from planner.model import Model
from planner.plain import from_plain

UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30}


def named_model(text: str) -> Model:
    """Return the model of a name in ``conf/model``, or of the path of a configuration file.

    A ``.yaml`` file holds our own fields; a ``.json`` file (or its folder) is a Hugging Face or
    Megatron configuration.

    Raises
    ------
    ConfigError
        For a name that is none of the models, listing them, and for what cannot be read.
    """
    path = Path(text).expanduser()
    if text.endswith((".yaml", ".yml")):
        return _model(path)
    if text.endswith(".json") or path.is_dir():
        return Model.from_file(path)
    return _model(
        _find("model", text, "a configuration file is named by its path, ending in .json")
    )


def with_layers(model: Model, layers: int | None) -> Model:
    """Return the model cut to its first ``layers`` layers (``None``: as it is).

    Raises
    ------
    ConfigError
        For more layers than the model has.
    """
    if layers is None:
        return model
    if layers > model.num_layers:
        raise ConfigError(
            f"layers = {layers} is more than the {model.num_layers} of {model.name}; what kind the "
            "others would be is not known"
        )
    dense, linear = (
        None if held is None else tuple(layer for layer in held if layer < layers)
        for held in (model.dense_layers, model.linear_layers)
    )
    return replace(model, num_layers=layers, dense_layers=dense, linear_layers=linear)


def named_device(text: str) -> int:
    """Return the bytes of a device in ``conf/device``, or of an amount such as 80GiB.

    Raises
    ------
    ConfigError
        For what is neither, listing the devices.
    """
    amount = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)", text.strip())
    if amount and amount[2].lower() in UNITS:
        size = round(float(amount[1]) * UNITS[amount[2].lower()])
        if size < 1:
            raise ConfigError(f"a device has at least one byte; got {text!r}")
        return size
    values = _read(_find("device", text, "an amount is written as 85520809984, 80GB or 79.1GiB"))
    capacity = values.get("capacity_bytes")
    if not isinstance(capacity, int):
        raise ConfigError(f"conf/device/{text}.yaml lacks capacity_bytes")
    return capacity


def _find(group: str, name: str, otherwise: str) -> Path:
    folder = Path(conf.__path__[0]) / group
    path = folder / f"{name}.yaml"
    if not path.is_file() or path.parent != folder:
        known = ", ".join(sorted(entry.stem for entry in folder.glob("*.yaml")))
        raise ConfigError(f"no {group} {name!r}; there are {known}; {otherwise}")
    return path


def _model(path: Path) -> Model:
    try:
        return from_plain(Model, _read(path), path.stem)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _read(path: Path) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError  # type: ignore[import-untyped]

    try:
        values = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except (OSError, UnicodeDecodeError, YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold keys and values; it holds {values!r}")
    return {str(key): value for key, value in values.items()}
