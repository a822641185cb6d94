"""Keys of a configuration: read by any of their spellings, remembered, never guessed in silence."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from planner.errors import ConfigError

MOST = 2**40
"""Larger values are no sizes of a model."""

MOST_LAYERS = 4096
"""Layers that a reader follows one by one."""

EXPERTISH = re.compile(r"expert|moe|sparse_step|dense_replace|mixture", re.IGNORECASE)
"""Keys that may turn layers into mixtures of experts."""

MIXERISH = re.compile(
    r"mamba|ssm|rwkv|recurrent|lightning|conv_l_cache|attn_layer_period|attn_type_list"
    r"|block_type|hybrid_override|attn_layer_indices|full_attn_idxs",
    re.IGNORECASE,
)
"""Keys that may replace attention by a mixer of another kind."""


def load_mapping(config: Mapping[str, Any] | str | Path) -> tuple[dict[str, Any], str]:
    """Return the configuration as a mapping, and what to call it in errors.

    Raises
    ------
    ConfigError
        When the file cannot be read, or does not hold a JSON object.
    """
    if isinstance(config, Mapping):
        return dict(config), "the configuration"
    path = Path(config)
    if path.is_dir():
        path = path / "config.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(
            f"{path} holds a JSON {type(data).__name__}; a model configuration is an object"
        )
    return data, str(path)


class Keys:
    """One level of a configuration, read key by key.

    A key that is absent, null or an empty list counts as not given. What is read is remembered, so
    that `unread` can name the rest; what is supplied instead is kept in `assumptions`.
    """

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self._data = {str(key): value for key, value in data.items()}
        self._where = where
        self._read: set[str] = set()
        self.assumptions: list[str] = []

    def find(self, *names: str) -> tuple[str, Any] | None:
        """Return the first of these keys that is given, with its value."""
        self._read.update(names)
        for name in names:
            value = self._data.get(name)
            if value is not None and value != []:
                return name, value
        return None

    def has(self, *names: str) -> bool:
        """Whether any of these keys is given."""
        return self.find(*names) is not None

    def count(self, *names: str, default: int | None = None, least: int = 0) -> int:
        """Return an integer of at least ``least``; a list of equal ones counts as that one.

        Raises
        ------
        ConfigError
            When no spelling is given and there is no default, or the value is no such integer.
        """
        found = self.find(*names)
        if found is None:
            if default is None:
                raise ConfigError(f"{self._where} lacks {_spell(names)}; add it")
            return default
        name, value = found
        if isinstance(value, (list, tuple)):
            distinct = list(dict.fromkeys(map(repr, value)))
            if len(distinct) > 1:
                raise self.error(
                    name,
                    f"differs from layer to layer ({', '.join(distinct[:4])}); "
                    "the planner prices layers of one width",
                    "give one value, or plan for the widest",
                )
            value = value[0]
        return self._integer(name, value, least)

    def layer_count(self, *names: str) -> int:
        """Return a number of layers; `ConfigError` when there are too many to follow."""
        number = self.count(*names, least=1)
        if number > MOST_LAYERS:
            found = self.find(*names)
            name = found[0] if found else names[0]
            raise self.error(name, f"is {number}", f"at most {MOST_LAYERS} are read")
        return number

    def _integer(self, name: str, value: object, least: int) -> int:
        whole = isinstance(value, float) and math.isfinite(value) and value == int(value)
        if isinstance(value, bool) or not (isinstance(value, int) or whole):
            raise self.error(name, f"is {value!r}, not a whole number", "correct it")
        number = int(value)  # type: ignore[call-overload]
        if not least <= number <= MOST:
            raise self.error(name, f"is {number}; at least {least} was expected", "correct it")
        return int(number)

    def flag(self, *names: str, default: bool = False) -> bool:
        """Return a truth value; `ConfigError` when it is neither true nor false."""
        found = self.find(*names)
        if found is None:
            return default
        name, value = found
        if not isinstance(value, (bool, int)) or value not in (0, 1):
            raise self.error(name, f"is {value!r}, neither true nor false", "correct it")
        return bool(value)

    def share(self, *names: str) -> float | None:
        """Return a part of a whole, above 0 and at most 1; `ConfigError` when it is none."""
        found = self.find(*names)
        if found is None:
            return None
        name, value = found
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (number and 0 < value <= 1):
            raise self.error(name, f"is {value!r}, no part of a whole", "correct it")
        return float(value)

    def nested(self, name: str) -> "Keys":
        """Return a mapping that the key holds, as keys; none where it holds no mapping."""
        found = self.find(name)
        inner = found[1] if found and isinstance(found[1], Mapping) else {}
        return Keys(inner, f"{self._where}: {name}")

    def text(self, *names: str, default: str = "") -> str:
        """Return a string; `ConfigError` when it is none."""
        found = self.find(*names)
        if found is None:
            return default
        name, value = found
        if not isinstance(value, str):
            raise self.error(name, f"is {value!r}, not a string", "correct it")
        return value

    def sequence(self, name: str) -> list[Any] | None:
        """Return a list, or ``None`` when the key is not given."""
        found = self.find(name)
        if found is None:
            return None
        if not isinstance(found[1], (list, tuple)):
            raise self.error(name, f"is {found[1]!r}, not a list", "give one entry a layer")
        return list(found[1])

    def layers(self, name: str, num_layers: int) -> tuple[int, ...] | None:
        """Return a list of layer indices below ``num_layers``; ``None`` when not given."""
        values = self.sequence(name)
        if values is None:
            return None
        found = tuple(sorted({self._integer(name, value, 0) for value in values}))
        if found and found[-1] >= num_layers:
            raise self.error(
                name, f"names layer {found[-1]}; there are {num_layers}", "name layers from 0"
            )
        return found

    def assume(self, what: str) -> None:
        """Keep a statement of what was supplied."""
        self.assumptions.append(what)

    def ignore(self, names: Iterable[str]) -> None:
        """Mark keys as known and without weight here."""
        self._read.update(names)

    def unread(self, looks_like: re.Pattern[str]) -> list[str]:
        """Keys of some look, on this level or one below, that are given and that nobody read."""
        found = [
            name
            for name, value in self._data.items()
            if name not in self._read and looks_like.search(name) and value not in (None, [], 0)
        ]
        found += [
            f"{name}.{inner}"
            for name, value in self._data.items()
            if name not in self._read and isinstance(value, Mapping)
            for inner in value
            if looks_like.search(str(inner))
        ]
        return sorted(found)

    def error(self, name: str, what: str, way_out: str) -> ConfigError:
        """Return an error that names the key."""
        return ConfigError(f"{self._where}: {name} {what}; {way_out}")


def _spell(names: tuple[str, ...]) -> str:
    first, *others = names
    return first if not others else f"{first} (or {', '.join(others)})"
