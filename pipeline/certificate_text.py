"""A certificate in lines: errors, effects, the routing allowance and the bound, for a shell."""

import json
from collections.abc import Iterator, Mapping
from typing import Any


def evidence_lines(certificate: Mapping[str, Any]) -> Iterator[str]:
    """Say what a certificate rests on, coefficients apart."""
    for name, figures in certificate["errors"].items():
        yield f"errors {name}: {json.dumps(figures)}"
    for name, found in certificate["figures"].items():
        if "factor" not in found:
            yield f"figure {name}: {found['why']}"
            continue
        parts = [f"{_value(found['factor'])} x expected"]
        parts += [f"{effect} {_value(size)}" for effect, size in found["effects"].items()]
        parts += found["not_separated"]
        yield f"figure {name}: {'; '.join(parts)} ({found['calls']} calls)"
    rows = certificate["rows"]
    for name in ("measured", "balanced"):
        seen = rows[name]
        size = (
            f"quantile {seen['factor']:g} [{seen['low']:g}, {seen['high']:g}]"
            if seen["factor"] is not None
            else "too few for a quantile"
        )
        yield (
            f"rows over {'those expected' if name == 'measured' else 'an even share'}: {size}, "
            f"{seen['calls']} calls of {seen['cells']} cells; the table allows "
            f"{rows['table'][name]:g}"
        )
    yield f"bound {json.dumps(certificate['bound'])}"


def _value(found: Mapping[str, Any]) -> str:
    low, high = found["interval"]
    return f"{found['value']:g} [{low:g}, {high:g}]"
