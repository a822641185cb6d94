"""The newest table that may be trusted in place of a given one: fitted from it, and certified."""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from pipeline.certificate import CertificateError, certificate_path, read_certificate
from pipeline.gate import Limits, uncertified
from planner.coefficients import Coefficients


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A table to price with.

    Parameters
    ----------
    coefficients
        Its name, or the path of its file.
    why
        Where it comes from, and which others were passed over, in words.
    """

    coefficients: str
    why: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fitted:
    path: Path
    name: str
    prior: str
    day: str


def last_certified(own: str, folders: Iterable[Path]) -> Choice:
    """Return the newest certified table whose chain of priors begins at ``own``, else ``own``.

    Parameters
    ----------
    own
        The table that a study names; another one describes another trainer, unless it was fitted
        from this one.
    folders
        Where fitted tables lie, beside those shipped.
    """
    fitted, notes = _read_all([Path(str(resources.files("planner.tables"))), *folders])
    family = {Coefficients.load(own).name}
    found: list[_Fitted] = []
    while grown := [one for one in fitted if one.prior in family and one not in found]:
        found += grown
        family |= {one.name for one in grown}
    limits = Limits.load()
    reasons = {one: uncertified(one.path, limits) for one in found}
    notes += [f"passed over {one.path}: {'; '.join(why)}" for one, why in reasons.items() if why]
    trusted = [one for one, why in reasons.items() if not why]
    if not trusted:
        why = f"no certified table is fitted from {own}; priced with {own} itself"
        return Choice(coefficients=own, why=(why, *notes))
    newest = max(trusted, key=lambda one: (one.day, one.path.stat().st_mtime))
    why = f"priced with {newest.path}, certified on {newest.day}, the last fitted from {own}"
    return Choice(coefficients=str(newest.path), why=(why, *notes))


def _read_all(folders: Iterable[Path]) -> tuple[list[_Fitted], list[str]]:
    """Read the name and origin of every table with a certificate; say which cannot be read."""
    found, notes = [], []
    for folder in folders:
        for path in sorted(folder.glob("*.toml")):
            beside = certificate_path(path)
            if not beside.exists():
                continue
            try:
                made = read_certificate(beside)
                if made.get("kind") == "confirmed":  # it stands as derived, fitted from no other
                    continue
                name, prior, day = made["table"]["name"], made["prior"]["name"], made["fit"]["date"]
            except (CertificateError, KeyError, TypeError) as error:
                notes.append(f"passed over {path}: {type(error).__name__}: {error}")
                continue
            found.append(_Fitted(path=path.absolute(), name=name, prior=prior, day=day))
    return found, notes
