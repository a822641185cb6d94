"""Which cells a sweep's last command asked for: a folder may hold others, of earlier commands."""

import json
from collections.abc import Iterable
from pathlib import Path

FILE = "asked.json"


def write_asked(out: Path, keys: Iterable[str]) -> None:
    """Write the keys of the cells down, atomically."""
    scratch = out / f"{FILE}.tmp"
    scratch.write_text(json.dumps(sorted(keys), indent=1) + "\n", encoding="utf-8")
    scratch.replace(out / FILE)


def forget_asked(out: Path) -> None:
    """Remove what an earlier command has left."""
    (out / FILE).unlink(missing_ok=True)


def read_asked(out: Path) -> tuple[str, ...]:
    """Return the keys; none where the command did not come so far."""
    try:
        return tuple(json.loads((out / FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return ()
