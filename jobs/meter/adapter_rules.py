"""Rules for adapters: gradients of their factors, and what runs between the factors."""

from jobs.meter.attribution import Rule
from jobs.meter.stream_rules import LAYER, SELF_ATTENTION

SHARED = LAYER + r"\.mlp\.shared_experts\.linear_fc[12]"
MIXER = SELF_ATTENTION + r"\.(linear_qkv|linear_proj|in_proj|out_proj)"
ADAPTED = "|".join((LAYER + r"\.mlp\.experts\.(linear_)?fc[12]", SHARED, MIXER))
"""Modules that can have an adapter."""

ADAPTERS = (
    Rule(
        term="adapters.gradients",
        why=".grad of an adapter's second factor, (r, out) for each local expert",
        module=ADAPTED,
        shape=("...", "r", "*"),
        gradient=True,
    ),
    Rule(
        term="adapters.gradients",
        why=".grad of an adapter's first factor, (in, r) for each local expert",
        module=ADAPTED,
        shape=("...", "r"),
        gradient=True,
    ),
    Rule(
        term="adapters.mixer_intermediates",
        why="tokens between an adapter's two factors and their gradients, (T, r)",
        module=MIXER,
        shape=("T", "r"),
    ),
    Rule(
        term="adapters.shared_intermediates",
        why="the same of the shared expert's adapters",
        module=SHARED,
        shape=("T", "r"),
    ),
)
