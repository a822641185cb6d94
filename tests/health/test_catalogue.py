"""Rules about the code of the catalogue itself, each listing every violation."""

import ast
import importlib
import pkgutil
import re
from pathlib import Path

import planner.terms
from planner import Coefficients, shipped_tables
from planner.term import Term
from planner.terms import TERMS

FOLDER = Path(planner.terms.__file__).parent


def test_every_declared_term_is_listed_once():
    """Reference: house rule: adding a term is a declaration and a line in TERMS."""
    declared = {
        value.name
        for info in pkgutil.iter_modules([str(FOLDER)])
        for value in vars(importlib.import_module(f"planner.terms.{info.name}")).values()
        if isinstance(value, Term)
    }
    names = [term.name for term in TERMS]
    assert declared == set(names)
    assert len(names) == len(set(names))


def test_a_term_names_its_family_its_shape_and_its_source():
    """Reference: house rule: name, what it is, formula, source; the family is the file's name."""
    faults = [
        term.name
        for term in TERMS
        if not re.fullmatch(r"[a-z]+(_[a-z]+)*\.[a-z0-9]+(_[a-z0-9]+)*", term.name)
        or not (term.what and term.shape and term.source)
    ]
    assert faults == []


def test_only_local_divides_by_a_degree():
    """Reference: design 3: a formula under terms/ multiplies what local.py has divided."""
    faults = []
    for path in FOLDER.glob("*.py"):
        if path.stem == "published":
            continue  # a published formula, kept to the letter, rounding included
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                faults.append(f"{path.name}:{node.lineno}: true division")
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
                names = {n.attr for n in ast.walk(node.right) if isinstance(n, ast.Attribute)}
                if names & {"tp", "cp", "pp", "ep", "etp", "dp"}:
                    faults.append(f"{path.name}:{node.lineno}: divides by a degree")
    assert faults == []


def test_every_copy_count_has_a_source():
    """Reference: house rule: no number without a source."""
    faults = [
        f"{name}: {entry.term}"
        for name in shipped_tables()
        for entry in Coefficients.load(name).copies
        if not entry.source.strip()
    ]
    assert faults == []
