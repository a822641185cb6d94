"""Coefficients: how many copies of each term are live at each moment, as dated data with sources.

A table describes one execution class. Shipped tables lie in ``planner/tables/*.toml`` and are never
edited once published: a better one is a new name. Format::

    name, date, what
    [bound]     margin, growth_margin, source     factors on bytes for admission; call_bytes: bytes
                beside them, for what a first call makes and lets go of (0 where it is left out)
    [rows]      balanced, measured, source        factors on routed rows at ep > 1 for admission
    [buffers]   reserve, replace, source          planner.hybridep.BufferPolicy
    [split]     together, source                  whether split children's graphs live side by side
    [covers]    facts that every entry of copies holds for only, beside its own when
    elsewhere   families of terms whose bytes this table counts under the names of others
    [[copies]]  term, at = {moment = copies}, when = {…}, interval = {moment = [low, high]}, source
    [[allowed]]  what, row_bytes, when = {…}, source    bytes of each routed row in the bound, for
                what was seen and no term explains
    [[unpriced]] what, why, when = {…}

``when`` maps a fact of the rank (`planner.facts`) to the values an entry holds for; ``">1"`` stands
for all above one. A term that exists on a rank and that no entry covers is *unpriced*, and said so.
"""

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from importlib import resources
from pathlib import Path
from typing import Any

from planner.errors import TableError
from planner.facts import EVERYWHERE, When, when_of
from planner.hybridep import BufferPolicy
from planner.moments import Moment
from planner.routing import Allowance

MILLI = 1000
"""Copies are kept in thousandths, so that every product of a price is an integer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Copies:
    """Live copies of one term, in thousandths, at each moment where there are any."""

    term: str
    at: Mapping[Moment, int]
    interval: Mapping[Moment, tuple[float, float]]
    when: When
    source: str


@dataclass(frozen=True, slots=True)
class Unpriced:
    """Bytes that a rank will hold and that the table does not price."""

    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowed:
    """Bytes that the bound holds for what was seen and no term explains.

    Parameters
    ----------
    row_bytes
        For each routed row of the layer with most.
    """

    what: str
    row_bytes: int
    when: When
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Coefficients:
    """One dated table.

    Parameters
    ----------
    margin_milli, growth_margin_milli
        Factors on bytes inside and outside PyTorch for the bound, in thousandths.
    call_bytes
        Bytes of the bound beside the margin, whatever the call's size.
    allowed
        Bytes of the bound beside the margin, by routed rows, for what no term explains.
    allowance
        Factors on routed rows for the bound where EP > 1.
    buffers
        How the trainer sizes and replaces HybridEP buffers.
    children_together
        Whether split children's graphs live side by side until backward.
    elsewhere
        Families of terms whose bytes this table counts under other names.
    covers
        Facts that every entry of copies holds for only.
    """

    name: str
    date: date
    what: str
    margin_milli: int
    growth_margin_milli: int
    allowance: Allowance
    buffers: BufferPolicy
    children_together: bool
    copies: tuple[Copies, ...]
    notes: tuple[tuple[Unpriced, When], ...]
    elsewhere: tuple[str, ...] = ()
    call_bytes: int = 0
    allowed: tuple[Allowed, ...] = ()
    covers: When = EVERYWHERE

    def only(self, fact: str) -> object:
        """Return the one value of a fact that the table covers; ``None``: more than one."""
        values = dict(self.covers.facts).get(fact, ())
        return values[0] if len(values) == 1 else None

    @classmethod
    def load(cls, name: str) -> "Coefficients":
        """Load a shipped table by name, or any table by the path of its TOML file.

        Raises
        ------
        TableError
            For a name that is not shipped (listing those that are), or a file that does not hold
            together (naming the entry).
        """
        if name.endswith(".toml"):
            try:
                text = Path(name).read_text(encoding="utf-8")
            except OSError as error:
                raise TableError(f"cannot read the coefficient table {name}: {error}") from error
            return read_table(text, where=name)
        file = resources.files("planner.tables") / f"{name}.toml"
        if not file.is_file():
            raise TableError(
                f"no coefficient table {name!r}; shipped: {', '.join(shipped_tables())}; "
                "a table of your own is named by its path, ending in .toml"
            )
        return read_table(file.read_text(encoding="utf-8"), where=f"{name}.toml")


def table_digest(name: str) -> str:
    """Return the SHA-256 of a table's text, by name or path; empty where there is none."""
    file = (
        Path(name) if name.endswith(".toml") else resources.files("planner.tables") / f"{name}.toml"
    )
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def shipped_tables() -> tuple[str, ...]:
    """Names of the tables that come with the package."""
    return tuple(
        sorted(
            entry.name.removesuffix(".toml")
            for entry in resources.files("planner.tables").iterdir()
            if entry.name.endswith(".toml")
        )
    )


def read_table(text: str, *, where: str) -> Coefficients:
    """Read a table from TOML; `TableError` names the file and the entry that is wrong."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TableError(f"{where} is not TOML: {error}") from error
    try:
        return Coefficients(
            name=str(data["name"]),
            date=_date(data["date"]),
            what=str(data["what"]),
            margin_milli=_milli(data["bound"]["margin"], least=MILLI),
            growth_margin_milli=_milli(data["bound"]["growth_margin"], least=MILLI),
            allowance=Allowance(
                balanced=_factor(data["rows"]["balanced"]),
                measured=_factor(data["rows"]["measured"]),
            ),
            buffers=BufferPolicy(
                reserve=data["buffers"]["reserve"], replace=data["buffers"]["replace"]
            ),
            children_together=bool(data["split"]["together"]),
            copies=tuple(_copies(entry, data.get("covers", {})) for entry in data["copies"]),
            notes=tuple(
                (Unpriced(entry["what"], entry["why"]), when_of(entry.get("when", {})))
                for entry in data.get("unpriced", ())
            ),
            elsewhere=tuple(str(family) for family in data.get("elsewhere", ())),
            call_bytes=_whole(data["bound"].get("call_bytes", 0)),
            covers=when_of(data.get("covers", {})),
            allowed=tuple(
                Allowed(
                    what=entry["what"],
                    row_bytes=_whole(entry["row_bytes"]),
                    when=when_of(entry.get("when", {})),
                    source=entry["source"],
                )
                for entry in data.get("allowed", ())
            ),
        )
    except KeyError as error:
        raise TableError(f"{where} lacks {error}") from error
    except (ValueError, TypeError) as error:
        raise TableError(f"{where}: {error}") from error


def _date(value: object) -> date:
    if not isinstance(value, date):
        raise TableError(f"date must be a TOML date such as 2026-11-29; got {value!r}")
    return value


def _factor(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 1:
        raise TableError(f"a factor on routed rows must be a number of at least 1; got {value!r}")
    return float(value)


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TableError(f"bytes must be a whole number of at least 0; got {value!r}")
    return value


def _milli(value: object, *, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TableError(f"a number was expected; got {value!r}")
    milli = round(value * MILLI)
    if abs(milli - value * MILLI) > 1e-6:
        raise TableError(f"{value!r} has more than three decimals; tables hold thousandths")
    if milli < least:
        raise TableError(f"{value!r} is below {least / MILLI:g}")
    return milli


def _copies(entry: Mapping[str, Any], covers: Mapping[str, Any]) -> Copies:
    term = entry.get("term", "?")
    try:
        at = {Moment(name): _milli(number) for name, number in entry["at"].items()}
        interval = {
            Moment(name): (float(low), float(high))
            for name, (low, high) in entry.get("interval", {}).items()
        }
        for moment, (low, high) in interval.items():
            if not low <= at[moment] / MILLI <= high:
                raise TableError(
                    f"{at[moment] / MILLI:g} lies outside its interval [{low}, {high}]"
                )
        return Copies(
            term=entry["term"],
            at=at,
            interval=interval,
            when=when_of({**entry.get("when", {}), **covers}),
            source=entry["source"],
        )
    except KeyError as error:
        raise TableError(f"copies of {term} lack {error}") from error
    except ValueError as error:
        raise TableError(f"copies of {term}: {error}") from error
