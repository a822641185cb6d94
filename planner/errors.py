"""What can go wrong in the planner, and how it is said.

::

    PlannerError (ValueError)
    ├── ConfigError      a model, topology, step or batch that cannot be; names value and way out
    ├── TableError       a coefficient table that cannot be read, or that names what does not exist
    └── UnpricedError    the caller asked for a number where the table has none

Does-not-fit is a result (`planner.admission.Refuse`), never an exception.
"""


class PlannerError(ValueError):
    """The planner was asked something it cannot answer."""


class ConfigError(PlannerError):
    """A model, topology, step or batch that cannot be."""


class TableError(PlannerError):
    """A coefficient table that cannot be read or does not hold together."""


class UnpricedError(PlannerError):
    """A number was required where the coefficient table holds none."""


def require_int(owner: str, name: str, value: object, *, least: int = 1) -> None:
    """Check that ``value`` is an integer of at least ``least``.

    Raises
    ------
    ConfigError
        Naming the owner, the field, and the value given. ``True`` and ``"4"`` are not integers.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(
            f"{owner}.{name} must be an integer; got {value!r} ({type(value).__name__})"
        )
    if value < least:
        raise ConfigError(f"{owner}.{name} must be at least {least}; got {value}")


def require_choice(owner: str, name: str, value: object, choices: tuple[str, ...]) -> None:
    """Check that ``value`` is one of ``choices``.

    Raises
    ------
    ConfigError
        Listing the choices.
    """
    if value not in choices:
        raise ConfigError(f"{owner}.{name} must be one of {', '.join(choices)}; got {value!r}")
