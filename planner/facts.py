"""Facts of a rank that an entry of a coefficient table may depend on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from planner.errors import TableError
from planner.local import Local

FACTS: Mapping[str, Callable[[Local], object]] = {
    "dispatcher": lambda local: local.dispatcher,
    "recompute": lambda local: local.recompute,
    "tp": lambda local: local.tp,
    "pp": lambda local: local.pp,
    "cp": lambda local: local.cp,
    "ep": lambda local: local.ep,
    "etp": lambda local: local.etp,
    "lora": lambda local: local.lora_rank > 0,
    "compile_garbage": lambda local: local.compile_garbage,
    "adapters": lambda local: "all" if local.dense_adapters else "experts",
    "shared_expert": lambda local: local.shared_hidden > 0,
    "shared_gate": lambda local: local.shared_gate,
    "gated_attention": lambda local: local.gated_attention,
    "wide_queries": lambda local: local.num_heads >= local.cp * local.num_kv_heads,
    "linear_attention": lambda local: local.linear_attention is not None,
    "dense_layers": lambda local: local.dense_layers > 0,
    "moe_layers": lambda local: local.moe_layers > 0,
    "device": lambda local: "cuda" if local.on_device else "cpu",
    "latent_attention": lambda local: local.latent_attention is not None,
    "engine": lambda local: local.engine,
    "gradients": lambda local: local.gradients,
}


@dataclass(frozen=True, slots=True)
class When:
    """Facts that must hold for an entry to apply; each maps to the values allowed."""

    facts: tuple[tuple[str, tuple[object, ...]], ...]

    def mismatch(self, local: Local) -> str | None:
        """Return what does not hold, in words, or ``None`` when all of it does."""
        for fact, allowed in self.facts:
            value = FACTS[fact](local)
            above = ">1" in allowed and isinstance(value, int) and value > 1
            if value not in allowed and not above:
                choices = " or ".join(str(choice) for choice in allowed)
                return f"only where {fact} is {choices}; here it is {value}"
        return None


EVERYWHERE = When(())
"""Holds on every rank."""


def when_of(facts: Mapping[str, Any]) -> When:
    """Read the condition of an entry; `TableError` names a fact that there is not."""
    unknown = sorted(set(facts) - set(FACTS))
    if unknown:
        raise TableError(f"when names {', '.join(unknown)}; it can name {', '.join(FACTS)}")
    return When(
        tuple(
            (fact, tuple(allowed) if isinstance(allowed, list) else (allowed,))
            for fact, allowed in facts.items()
        )
    )


Tests = tuple[tuple[int, tuple[object, ...], bool], ...]
"""For each fact that a condition names: its place in `FACTS`, what it may be, whether above 1."""


def tests_of(when: When) -> Tests:
    """Return what a condition asks of the facts, by their place."""
    places = list(FACTS)
    return tuple((places.index(fact), allowed, ">1" in allowed) for fact, allowed in when.facts)


def hold(tests: Tests, facts: tuple[object, ...]) -> bool:
    """Return whether a condition holds: `When.mismatch` without its words."""
    for place, allowed, above in tests:
        value = facts[place]
        if value not in allowed and not (above and isinstance(value, int) and value > 1):
            return False
    return True
