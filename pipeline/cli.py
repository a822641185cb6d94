"""The ``peakcast`` command; only the sub-command that runs is imported, so `plan` starts fast."""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from pipeline.commands import COMMANDS, module_of


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``peakcast`` with the given arguments, by default the command line's."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    application(next((word for word in given if word in COMMANDS), None))(given)


def application(wanted: str | None) -> typer.Typer:
    """Return the application with ``wanted`` loaded and the other sub-commands by name alone."""
    app = typer.Typer(
        name="peakcast",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        help="Plan, fit and check the memory of mixture-of-experts training.",
    )
    app.callback()(lambda: None)  # keeps sub-commands by name even where there is one
    for name in COMMANDS:
        if name == wanted:
            module = importlib.import_module(module_of(name))
            app.command(name, epilog=_exit_codes(module.__doc__ or ""))(module.run)
        else:
            app.command(name, help=_first_line(name))(lambda: None)
    return app


def _exit_codes(docstring: str) -> str:
    """Return what a command module's docstring says of exit codes, as one line."""
    _, said, codes = " ".join(docstring.split()).partition("Exit code: ")
    return said + codes


def _first_line(name: str) -> str:
    """Return the first line of a command module's docstring, without importing it."""
    spec = importlib.util.find_spec(module_of(name))
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or "").partition("\n")[0]


if __name__ == "__main__":
    main()
