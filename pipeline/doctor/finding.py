"""One thing that a machine may offer, and what was found of it."""

from dataclasses import dataclass

OK, ABSENT, BROKEN = "ok", "absent", "broken"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What was found of one thing.

    Parameters
    ----------
    name
        What people call it; `peakcast doctor --require` takes these names.
    status
        ``ok``; ``absent``: it is not here; ``broken``: it is, and does not work.
    found
        Version, place or size; or what is wrong. Never a value of the environment, which may hold
        a secret.
    needed_for
        What cannot be done without it; ``every sweep`` makes it needed always.
    fix
        What to do where it is not ``ok``; empty otherwise.
    """

    name: str
    status: str
    found: str
    needed_for: str
    fix: str = ""

    @property
    def is_ok(self) -> bool:
        """Whether it is there and works."""
        return self.status == OK


EVERY_SWEEP = "every sweep"


def here(name: str, found: str, needed_for: str) -> Finding:
    """Return the finding of a thing that is here and works."""
    return Finding(name=name, status=OK, found=found, needed_for=needed_for)


def absent(name: str, found: str, needed_for: str, fix: str) -> Finding:
    """Return the finding of a thing that is not here."""
    return Finding(name=name, status=ABSENT, found=found, needed_for=needed_for, fix=fix)


def broken(name: str, found: str, needed_for: str, fix: str) -> Finding:
    """Return the finding of a thing that is here and does not work."""
    return Finding(name=name, status=BROKEN, found=found, needed_for=needed_for, fix=fix)
