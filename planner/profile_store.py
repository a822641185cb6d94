"""ProfileStore: what earlier jobs have shown, in one file that concurrent jobs may write.

The file is JSON: for each key a `Profile` and what the key stands for. A writer takes a lock beside
the file, reads it again, keeps the worst of both and replaces it whole; a reader needs no lock.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import ConfigError
from planner.plain import digest, to_plain
from planner.profile import BANDS, Profile

if TYPE_CHECKING:
    from planner.pricer import Pricer

SCHEMA = 1


def subject_of(pricer: "Pricer") -> dict[str, Any]:
    """Return what a profile depends on: model, topology, step, dispatcher, and the table's text."""
    return {
        "model": to_plain(pricer.model),
        "topology": to_plain(pricer.topology),
        "step": to_plain(pricer.step),
        "dispatcher": pricer.local.dispatcher,
        "routing": pricer.routing.kind,
        "coefficients": {
            "name": pricer.coefficients.name,
            "digest": digest(to_plain(pricer.coefficients)),
        },
    }


class ProfileStore:
    """Profiles of many kinds of job in one file.

    Parameters
    ----------
    path
        The file; it and its folder are made at the first write.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self, pricer: "Pricer") -> Profile:
        """Return what is known of jobs like this one; an empty profile when nothing is.

        Raises
        ------
        ConfigError
            When the file is no store of profiles or of a later version; says what to do.
        """
        entry = self._read().get(digest(subject_of(pricer)))
        return Profile.from_ints(entry["figures"]) if entry else Profile()

    def learn(self, pricer: "Pricer", profile: Profile) -> Profile:
        """Merge a profile into the file; return the worst of both. Any process may call it."""
        subject = subject_of(pricer)
        key = digest(subject)
        with self._locked():
            entries = self._read()
            if key in entries:
                profile = profile.merge(Profile.from_ints(entries[key]["figures"]))
            entries[key] = {"of": subject, "figures": list(profile.to_ints())}
            self._write(entries)
        return profile

    def _read(self) -> dict[str, Any]:
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{self.path} is no store of profiles ({error}); move it away to begin anew"
            ) from error
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            found = data.get("schema") if isinstance(data, dict) else None
            raise ConfigError(
                f"{self.path} has schema {found!r}, this version reads {SCHEMA}; "
                "move it away to begin anew"
            )
        entries = data.get("profiles")
        if not isinstance(entries, dict) or not all(map(_is_entry, entries.values())):
            raise ConfigError(
                f"{self.path} has a profile without its {2 * BANDS} figures; "
                "move it away to begin anew"
            )
        return entries

    def _write(self, entries: dict[str, Any]) -> None:
        scratch = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        with scratch.open("w", encoding="utf-8") as file:
            json.dump({"schema": SCHEMA, "profiles": entries}, file, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(self.path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_name(f"{self.path.name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _is_entry(entry: object) -> bool:
    figures = entry.get("figures") if isinstance(entry, dict) else None
    return (
        isinstance(figures, list)
        and len(figures) == 2 * BANDS
        and all(isinstance(figure, int) and figure >= 0 for figure in figures)
    )
