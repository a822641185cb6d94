"""Plain: our dataclasses as JSON values and back, so that a decision can be read again."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import date
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from planner.errors import ConfigError

T = TypeVar("T")


def to_plain(value: object) -> Any:
    """Return ``value`` as JSON values: dataclasses as objects, tuples as lists, dates as text."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): to_plain(held) for key, held in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(held) for held in value]
    return value


def from_plain(kind: type[T], data: object, where: str) -> T:
    """Make a dataclass from JSON values.

    Raises
    ------
    ConfigError
        For a key that is missing or unknown and a value of the wrong kind, naming the place.
    """
    if not isinstance(data, dict):
        raise ConfigError(f"{where} must be an object; got {data!r}")
    hints = get_type_hints(kind)
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(set(data) - set(known)):
        raise ConfigError(
            f"{where} has unknown key {', '.join(map(repr, unknown))}; known: {', '.join(known)}"
        )
    missing = [
        name
        for name, field in known.items()
        if field.default is MISSING and field.default_factory is MISSING and name not in data
    ]
    if missing:
        raise ConfigError(f"{where} lacks {', '.join(missing)}")
    return kind(
        **{name: _typed(hints[name], value, f"{where}.{name}") for name, value in data.items()}
    )


def canonical(data: object) -> str:
    """Return JSON that is the same for the same values: sorted keys, no spaces."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(data: object) -> str:
    """Return the SHA-256 of JSON values in their canonical form."""
    return hashlib.sha256(canonical(data).encode()).hexdigest()


def _typed(annotation: Any, value: object, where: str) -> Any:
    """Return a JSON value as its annotation wants it: a nested dataclass, a tuple, or as it is."""
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return _chosen(get_args(annotation), value, where)
    if isinstance(annotation, type) and is_dataclass(annotation):
        return from_plain(annotation, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{where} must be a list; got {value!r}")
        item = get_args(annotation)[0]
        return tuple(_typed(item, held, f"{where}[{i}]") for i, held in enumerate(value))
    kinds = (int, float) if annotation is float else annotation
    if isinstance(annotation, type) and (
        not isinstance(value, kinds) or (isinstance(value, bool) and annotation is not bool)
    ):
        raise ConfigError(f"{where} must be of type {annotation.__name__}; got {value!r}")
    return value


def _chosen(options: tuple[Any, ...], value: object, where: str) -> Any:
    if value is None and NoneType in options:
        return None
    wants_list = isinstance(value, list)
    for option in options:
        if option is not NoneType and (get_origin(option) is tuple) == wants_list:
            return _typed(option, value, where)
    raise ConfigError(f"{where} cannot be {value!r}")
