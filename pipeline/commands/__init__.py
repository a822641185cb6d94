"""The sub-commands of ``peakcast``: one module each, loaded when it is asked for.

A module ``pipeline.commands.<name>`` has a function ``run`` whose parameters are the command's
(Typer annotations); the first line of the module's docstring is what ``peakcast --help`` shows.
A name that Python keeps to itself has a module with an underscore behind it: ``import_``.
"""

from keyword import iskeyword

COMMANDS: tuple[str, ...] = (
    "plan",
    "replay",
    "report",
    "trace",
    "facts",
    "fit",
    "certify",
    "score",
    "gate",
    "query",
    "import",
    "publish",
    "dashboard",
    "snapshot",
    "logs",
    "schedule",
    "doctor",
)
"""Names of the sub-commands, in the order of the help."""


def module_of(name: str) -> str:
    """Return the module of a sub-command."""
    return f"pipeline.commands.{name}{'_' if iskeyword(name) else ''}"
