"""Sound: whether a record's figures are what a record promises, before anything is made of them.

`jobs.record` reads any line whose names are right. Here the values are held against the types that
the record declares; whole numbers count bytes, rows or calls, so that none is negative.
"""

import math
import types
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from jobs.record import RankRecord

Check = Callable[[Any], str]
"""Returns what is wrong with a value, as the end of a sentence that begins with its name."""


def fault_of(record: RankRecord) -> str:
    """Return what is wrong with a record's values, naming the field; empty where nothing is."""
    return wrong_value(RankRecord, record)


def wrong_value(kind: type, value: object) -> str:
    """Return what is wrong with a dataclass, naming the field; empty where nothing is."""
    return _check(kind)(value).removeprefix(".")


@cache
def _check(hint: Any) -> Check:
    """Return the check of a type hint."""
    if hint is Any:
        return lambda _: ""
    if is_dataclass(hint):
        return _dataclass(hint)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        (kind,) = (one for one in inner if one is not type(None))  # records know no other union
        check = _check(kind)
        return lambda value: "" if value is None else check(value)
    if origin is dict:
        return _items(_check(inner[1]), dict, lambda value: value.items())
    if origin is list:
        return _items(_check(inner[0]), list, enumerate)
    if origin is tuple:
        return _tuple([_check(kind) for kind in inner])
    if hint is int:
        return _whole
    if hint is float:
        return _real
    return lambda value: "" if isinstance(value, hint) else _not(value, hint)


def _dataclass(kind: Any) -> Check:
    hints = get_type_hints(kind)
    checks = [(field.name, _check(hints[field.name])) for field in fields(kind)]

    def check(value: Any) -> str:
        if not isinstance(value, kind):
            return _not(value, kind)
        for name, check_field in checks:
            wrong = check_field(getattr(value, name))
            if wrong:
                return f".{name}{wrong}"
        return ""

    return check


def _items(check: Check, kind: type, pairs: Callable[[Any], Iterable[tuple[Any, Any]]]) -> Check:
    def check_all(value: Any) -> str:
        if not isinstance(value, kind):
            return _not(value, kind)
        for name, item in pairs(value):
            wrong = check(item)
            if wrong:
                return f"[{name!r}]{wrong}"
        return ""

    return check_all


def _tuple(checks: list[Check]) -> Check:
    def check(value: Any) -> str:
        if not isinstance(value, (list, tuple)) or len(value) != len(checks):  # JSON knows lists
            return f" = {value!r:.80} is no list of {len(checks)}"
        return next(filter(None, (one(item) for one, item in zip(checks, value, strict=True))), "")

    return check


def _whole(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return _not(value, int)
    return f" = {value} is negative" if value < 0 else ""


def _real(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return _not(value, float)
    return "" if math.isfinite(value) else f" = {value} is no finite number"


def _not(value: object, kind: type) -> str:
    return f" = {value!r:.80} is no {kind.__name__}"
