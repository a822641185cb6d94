"""The sub-commands of ``peakcast``: one module each, loaded when it is asked for.

A module ``pipeline.commands.<name>`` has a function ``run`` whose parameters are the command's
(Typer annotations); the first line of the module's docstring is what ``peakcast --help`` shows.
"""

COMMANDS: tuple[str, ...] = ("plan", "replay", "report", "trace", "facts")
"""Names of the sub-commands, in the order of the help."""
