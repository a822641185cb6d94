"""Requests: what a caller sends in one call, with the prefixes that requests share.

A prefix is stored once for all requests of a replica's packed sequence that begin with it, and may
itself follow another: a tree. *Logical* tokens count every request in full, *packed* tokens count
each prefix once. As JSON::

    {"prefixes": {"system": {"tokens": 900},
                  "question": {"tokens": 200, "after": "system"}},
     "requests": [{"tokens": 512, "prefix": "question", "targets": 512},
                  {"tokens": 480, "prefix": "question", "gradient": false}]}

or a list of lengths: ``[512, 512, 300]``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import ConfigError, require_int


@dataclass(frozen=True, kw_only=True, slots=True)
class Prefix:
    """Tokens that several requests begin with, stored once.

    Parameters
    ----------
    after
        The prefix that this one follows, if any.
    """

    name: str
    tokens: int
    after: "Prefix | None" = None

    def __post_init__(self) -> None:
        require_int(f"prefix {self.name!r}", "tokens", self.tokens)

    @property
    def chain(self) -> tuple["Prefix", ...]:
        """All prefixes up to and with this one, first one first."""
        return (*(self.after.chain if self.after else ()), self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One request.

    Parameters
    ----------
    tokens
        Tokens of its own, behind its prefix.
    prefix
        What it shares with others, if anything.
    gradient
        Whether its loss is differentiated.
    targets
        Positions whose log-probability is asked for; ``None``: all of its own tokens.
    """

    tokens: int
    prefix: Prefix | None = None
    gradient: bool = True
    targets: int | None = None

    def __post_init__(self) -> None:
        require_int("request", "tokens", self.tokens)
        if self.targets is not None:
            require_int("request", "targets", self.targets, least=0)
            if self.targets > self.logical_tokens:
                raise ConfigError(
                    f"request.targets = {self.targets} is more than its "
                    f"{self.logical_tokens} tokens; a position has one target"
                )

    @property
    def chain(self) -> tuple[Prefix, ...]:
        """The prefixes it begins with, first one first."""
        return self.prefix.chain if self.prefix else ()

    @property
    def logical_tokens(self) -> int:
        """Its own tokens and those of its prefixes."""
        return self.tokens + sum(prefix.tokens for prefix in self.chain)


def read_requests(path: Path) -> tuple[Request, ...]:
    """Read a file of requests.

    Raises
    ------
    ConfigError
        When the file cannot be read or is not of the format above; names the file, the request and
        the key.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the requests in {path}: {error}") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    try:
        return requests_of(data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def requests_of(data: object) -> tuple[Request, ...]:
    """Build requests from JSON values; raises `ConfigError` naming what is wrong."""
    if isinstance(data, list):
        data = {"requests": data}
    if not isinstance(data, dict) or not isinstance(data.get("requests"), list):
        raise ConfigError(
            "requests are a list of lengths, or an object with 'requests' (and 'prefixes')"
        )
    _known(data, ("requests", "prefixes"), "the file")
    listed = data.get("prefixes", {})
    if not isinstance(listed, dict):
        raise ConfigError(f"prefixes must be an object of name: {{tokens, after}}; got {listed!r}")
    prefixes: dict[str, Prefix] = {}
    for name in listed:
        _prefix(name, listed, prefixes, ())
    found = tuple(_request(i, item, prefixes) for i, item in enumerate(data["requests"]))
    if not found:
        raise ConfigError("requests is empty; give at least one")
    return found


def _prefix(
    name: str, listed: Mapping[str, Any], known: dict[str, Prefix], below: tuple[str, ...]
) -> Prefix:
    if name in known:
        return known[name]
    if name in below:
        raise ConfigError(f"prefixes go in a circle: {' after '.join((*below, name))}")
    if name not in listed:
        raise ConfigError(f"no prefix {name!r}; there are {', '.join(listed) or 'none'}")
    entry = listed[name]
    where = f"prefixes.{name}"
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} must be an object with tokens; got {entry!r}")
    _known(entry, ("tokens", "after"), where)
    after = entry.get("after")
    parent = _prefix(after, listed, known, (*below, name)) if after is not None else None
    known[name] = Prefix(name=name, tokens=_required(entry, "tokens", where), after=parent)
    return known[name]


def _request(index: int, item: object, prefixes: Mapping[str, Prefix]) -> Request:
    where = f"requests[{index}]"
    entry: dict[str, Any] = item if isinstance(item, dict) else {"tokens": item}
    _known(entry, ("tokens", "prefix", "gradient", "targets"), where)
    name, gradient = entry.get("prefix"), entry.get("gradient", True)
    if name is not None and name not in prefixes:
        raise ConfigError(
            f"{where}.prefix is {name!r}; there are {', '.join(prefixes) or 'no prefixes'}"
        )
    if not isinstance(gradient, bool):
        raise ConfigError(f"{where}.gradient must be true or false; got {gradient!r}")
    try:
        return Request(
            tokens=_required(entry, "tokens", where),
            prefix=prefixes[name] if name is not None else None,
            gradient=gradient,
            targets=entry.get("targets"),
        )
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _required(entry: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in entry:
        raise ConfigError(f"{where} lacks {key}")
    return entry[key]


def _known(entry: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    if unknown := sorted(set(entry) - set(keys)):
        raise ConfigError(
            f"{where} has unknown key {', '.join(map(repr, unknown))}; known: {', '.join(keys)}"
        )
