"""Whether a table prices anything of what is planned; zero in silence would be a wrong answer."""

from planner.batch import Batch
from planner.coefficients import shipped_tables
from planner.errors import ConfigError, PlannerError
from planner.pricer import Pricer, compile_pricer


def require_priced(pricer: Pricer, batch: Batch) -> None:
    """Check that some term of the batch has a price.

    Raises
    ------
    ConfigError
        When none has, saying why of the first, and which shipped tables price some.
    """
    if pricer.price(batch).bound_bytes:
        return
    left_out = {name: _unpriced(name, pricer, batch) for name in shipped_tables()}
    others = sorted((count, name) for name, count in left_out.items() if count is not None)
    named = ", ".join(f"{name} ({count} parts unpriced)" for count, name in others)
    raise ConfigError(
        f"the table {pricer.coefficients.name} prices nothing of this step ({pricer.unpriced[0]}); "
        + (f"--coefficients can be {named}" if named else "nor does any that is shipped")
    )


def _unpriced(name: str, pricer: Pricer, batch: Batch) -> int | None:
    """Return how many parts a table leaves unpriced; ``None`` where it prices nothing at all."""
    try:
        other = compile_pricer(pricer.model, pricer.topology, pricer.step, coefficients=name)
        unpriced = other.unpriced_of(forward_only=batch.forward_only)
        return len(unpriced) if other.price(batch).bound_bytes else None
    except PlannerError:
        return None  # it does not even compile for this step
