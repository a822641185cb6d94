"""Which planner term a live allocation belongs to, by the frames that made it and by its size.

A snapshot holds sizes and stacks, no shapes. The innermost frame that a rule knows gives the
family; among the family's terms, the one whose copy for this rank's tokens, or for a whole number
of routed rows, has exactly the bytes asked for, gives the term. Where none has, or two have, the
bytes stay with the family, ``family.*``. In backward, tensors that autograd's own nodes make have
no Python frame that says more than "backward": they stay unattributed.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobs.snapshot.held import Group
from jobs.snapshot.tables import Frame, Stacks
from planner.local import Local
from planner.size import Size
from planner.terms import TERMS

FAMILIES: tuple[tuple[str, str], ...] = (
    (r"kernels/grouped_matmul|jobs/model/experts|moe/experts|grouped_linear", "experts"),
    (r"moe/shared_experts", "shared"),
    (r"moe/router", "router"),
    (r"kernels/permutation|moe/(token_dispatcher|fused_a2a)|deep_ep/|/permutation\.py", "dispatch"),
    (
        r"jobs/model/gdn|ssm/gated_delta_net|(^|/)fla/|kernels/(gated_delta|delta_|causal_conv)",
        "gdn",
    ),
    (
        r"jobs/model/attention|transformer/(dot_product_)?attention|attention/dot_product",
        "attention",
    ),
    (r"jobs/model/(head|kernels/target_log_probs)|cross_entropy", "head"),
    (r"kernels/rms_norm|jobs/model/norm|layer_norm|module/rmsnorm|module/layernorm", "residual"),
    (r"optim/|optimizer/", "optimizer"),
)
"""Pattern of a frame's file, and the family of what is made there: our model's files, Megatron's,
Transformer Engine's, DeepEP's and flash-linear-attention's."""

_COMPILED = tuple((re.compile(pattern), family) for pattern, family in FAMILIES)

SIZED_FAMILIES = {"dispatch": ("dispatch", "experts"), "experts": ("experts", "adapters")}
"""Families whose terms the frames of one may make: a dispatcher returns the experts' inputs."""

UNATTRIBUTED = "unattributed"


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a copy of each term may measure on one rank.

    Parameters
    ----------
    local
        Widths of the rank; ``None``: unknown, and only families are told.
    tokens
        Local tokens of the call.
    rows
        Routed rows of each layer, where they are known; else any whole number will do.
    """

    local: Local | None = None
    tokens: int = 0
    rows: frozenset[int] = frozenset()

    def terms(self, families: Sequence[str], requested: int) -> list[str]:
        """Return the terms of ``families`` of which a copy has just these bytes.

        Gradients are none of them: where frames say more than "backward", forward is at work.
        """
        local = self.local
        if local is None:
            return []
        return [
            term.name
            for term in TERMS
            if term.family in families
            and not term.name.endswith(("_gradient", "_gradients"))
            and term.when(local)
            and self._measures(term.size(local), requested)
        ]

    def _measures(self, size: Size, requested: int) -> bool:
        """Whether a copy has ``requested`` bytes: of all tokens, a chunk, or a number of rows."""
        local = self.local
        assert local is not None
        for rate in (size.tokens, size.tokens_reached, size.attention_tokens, size.linear_tokens):
            if rate:
                return rate * self.tokens == requested
        if size.head_tokens:
            return size.head_tokens * min(self.tokens, local.head_chunk) == requested
        if self.rows:
            return bool(size.rows) and requested in {size.rows * rows for rows in self.rows}
        most = self.tokens * local.top_k * local.group_ranks
        return bool(size.rows) and not requested % size.rows and requested // size.rows <= most


def family_of(frames: Iterable[Frame]) -> str | None:
    """Return the family of the innermost frame that a rule knows."""
    for frame in frames:
        for pattern, family in _COMPILED:
            if pattern.search(frame.filename):
                return family
    return None


def attribute(groups: Iterable[Group], stacks: Stacks, sizes: Sizes) -> dict[str, int]:
    """Return bytes by term, by ``family.*`` and `UNATTRIBUTED`, largest first."""
    found: dict[str, int] = {}
    families: dict[int, str | None] = {}
    for group in groups:
        if group.stack not in families:
            families[group.stack] = family_of(stacks.frames_of(group.stack))
        name = _term(families[group.stack], group.requested, sizes)
        found[name] = found.get(name, 0) + group.nbytes
    return dict(sorted(found.items(), key=lambda item: item[1], reverse=True))


def _term(family: str | None, requested: int, sizes: Sizes) -> str:
    if family is None:
        return UNATTRIBUTED
    terms = sizes.terms(SIZED_FAMILIES.get(family, (family,)), requested)
    return terms[0] if len(terms) == 1 else f"{family}.*"
