"""Text that ships with Python, as bytes: the help topics of pydoc. Standard library only.

The text is cut into blocks dealt out in turn to three roles, so that each role has its own text of
the same kind: ``training`` for the small checkpoint, ``census`` to measure routing on, and
``calls`` for the requests of a sweep.
"""

import hashlib
from functools import cache
from pydoc_data.topics import topics

BLOCK = 4096
ROLES = ("training",) * 8 + ("census", "calls")
"""Which role takes the n-th block of every ten."""


@cache
def corpus() -> bytes:
    """Return the whole text, topics in alphabetical order."""
    return "\n".join(topics[name] for name in sorted(topics)).encode()


@cache
def corpus_hash() -> str:
    """Return the SHA-256 of the text; it differs between versions of Python."""
    return hashlib.sha256(corpus()).hexdigest()


@cache
def text_of(role: str) -> bytes:
    """Return the text of one role."""
    whole = corpus()
    starts = range(0, len(whole), BLOCK)
    return b"".join(
        whole[start : start + BLOCK]
        for index, start in enumerate(starts)
        if ROLES[index % len(ROLES)] == role
    )


def window(role: str, start: int, length: int) -> bytes:
    """Return ``length`` bytes of a role's text from ``start``, wrapping at its end."""
    text = text_of(role)
    start %= len(text)
    repeats = -(-(start + length) // len(text))
    return (text * repeats)[start : start + length]
