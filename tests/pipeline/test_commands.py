"""Every sub-command as a newcomer meets it: its help on 80 columns, and bad input in words."""

import json
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner, Result

from pipeline.cli import application
from pipeline.commands import COMMANDS
from tests.conftest import GOLDEN
from tests.pipeline.test_store import a_cell, write

CELLS = str(GOLDEN / "h200_cells.csv")
STUDY = GOLDEN / "default_study"
GATE = ("gate", "--records", CELLS, "--coefficients", "nonfull-h200")
PLAN = ("plan", "--model", "tiny", "--tokens", "4096")


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).invoke(
        application(arguments[0]), list(arguments)
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a newcomer may point at: an empty folder, a text, records that are torn or odd."""
    made = tmp_path_factory.mktemp("bad")
    (made / "empty").mkdir()
    (made / "text").write_text("hello\n")
    (made / "limits.yaml").write_text("large_median_error: [\n")
    shutil.copytree(STUDY, made / "torn")
    for file in (made / "torn" / "records").iterdir():
        first, *_ = file.read_text().splitlines()
        wrong = json.loads(first)
        wrong["observed"]["working_set_bytes"] = "x"
        file.write_text(json.dumps(wrong) + '\n{"a": 1\n[]\n{"schema": 1}\n')
    shutil.copytree(STUDY, made / "kept")
    (made / "kept" / "report.html").mkdir()
    return made


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_eighty_columns_and_cuts_no_name(command: str) -> None:
    """Reference: the width of a terminal; the options that the command itself declares."""
    text = run(command, "--help").output
    assert max(map(len, text.splitlines())) <= 80
    assert "``" not in text
    declared = {word for line in text.splitlines() for word in re.findall(r"--[a-z-]+…", line)}
    assert not declared, "a name was cut"
    assert "Exit code: 0" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*PLAN, "--html", "empty"), "cannot write empty: it is a folder; name a file in it"),
        ((*PLAN, "--report", "text/x.json"), "cannot write text/x.json: "),
        (("replay", "empty"), "empty is a folder; name files in it, such as empty/*.jsonl"),
        (("replay", "nowhere.json"), "cannot read nowhere.json"),
        (("report", "text"), "text holds no records"),
        (("report", "torn"), "torn holds no record that can be read"),
        (("report", "kept"), "cannot write into kept: Is a directory"),
        (("trace", "--model", "tiny", "--out", "x.txt"), "its name must end in .toml"),
        (("trace", "--model", "tiny", "--out", "text/x.toml"), "text is no folder"),
        (
            ("trace", "--model", "tiny", "--out", "x.toml", "--layers", "6", "4"),
            "the smaller trace comes first: got --layers 6 4",
        ),
        (("facts", "nowhere"), "nowhere holds no call that was observed to its end"),
        (("facts", "torn"), "torn holds no call that was observed to its end"),
        (("fit", CELLS, "-o", "x.txt"), "cannot write x.txt: its name must end in .toml"),
        (("fit", CELLS, "-o", "empty.toml", "--draws", "-1"), "Invalid value for '--draws'"),
        (("fit", CELLS, "-o", "empty.toml", "--strength", "-1"), "Invalid value for '--strength'"),
        (("fit", "torn", "-o", "x.toml"), "no record under torn was observed to its end"),
        (("certify", "kept", "-o", "empty"), "cannot write empty: its name must end in .json"),
        (("score", "empty"), "cannot read empty: Is a directory"),
        (("score", "nowhere.csv"), "cannot read nowhere.csv: No such file or directory"),
        (
            (*GATE, "--limits", "nowhere"),
            "cannot read the limits nowhere: No such file or directory",
        ),
        (
            (*GATE, "--limits", "text"),
            "it is YAML with numbers for large_median_error, large_worst_error, least_cells",
        ),
        (
            (*GATE, "--limits", "limits.yaml"),
            "limits.yaml holds no limits",
        ),
        (("query", "SELECT 1", "--out", "nowhere"), "nowhere holds no records"),
        (("query", "SELECT 1", "--out", "torn"), "torn holds no records"),
        (("import", CELLS, "-o", "text"), "cannot write into text: Not a directory"),
        (("import", "nowhere.csv", "-o", "x"), "cannot read nowhere.csv: No such file"),
        (("schedule", "nightly", "--out", "text"), "--out text is no folder"),
        (("logs", "text"), "text holds no records"),
        (("snapshot", "text"), "the file is no pickle"),
        (("dashboard", "", "-o", "y.json"), "name the W&B user or team"),
        (("dashboard", "team", "-o", "empty"), "cannot write empty: Is a directory"),
        (("publish", "text", "--records", "empty"), "cannot read the certificate"),
    ],
)
def test_bad_input_is_said_in_words_and_has_its_exit_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    """Reference: the exit codes in each command's help; an error that nobody foresaw is code 1."""
    monkeypatch.chdir(folder)
    result = run(*arguments)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 2
    words = " ".join(result.output.replace("│", " ").split())
    assert message in words
    assert sorted(path.name for path in folder.iterdir()) == [
        *("empty", "kept", "limits.yaml", "text", "torn")
    ], "nothing was written"


def test_records_with_wrong_values_cost_a_query_nothing_else(tmp_path: Path) -> None:
    """Reference: thirty records of the recorded study, of which one is made wrong."""
    shutil.copytree(STUDY, tmp_path / "study")
    file = min((tmp_path / "study" / "records").iterdir())
    first, *rest = file.read_text().splitlines()
    wrong = json.loads(first)
    wrong["observed"]["working_set_bytes"] = "x"
    file.write_text("\n".join([json.dumps(wrong), *rest]) + "\n")
    result = run("query", "SELECT count(*) AS n FROM records", "--out", str(tmp_path / "study"))
    assert result.exit_code == 0
    assert "29" in result.output
    assert "observed.working_set_bytes = 'x' is no int; the record was left out" in result.output


def test_a_score_is_a_line_a_size_on_any_terminal() -> None:
    """Reference: the published table's own figures, 51 cells; a cell of 20,892 rows by hand."""
    output = run("score", CELLS).output
    lines = output.splitlines()
    assert "  12288x2        20,892 108,390.93 108,211.57   -0.2 % 111,834.87     1.032" in lines
    assert sum(line.startswith("  ") for line in lines) == 51 + 1
    assert max(len(line) for line in lines if line.startswith("  ")) <= 80


def test_rows_wider_than_the_terminal_are_shown_one_by_one() -> None:
    """Reference: the columns of a record's row, each with its value; a narrow answer is a table."""
    wide = run("query", "SELECT * FROM records LIMIT 2", "--out", str(STUDY)).output
    assert "row 2 of 2" in wide
    assert re.search(r"^planned_expected_bytes +\d+$", wide, re.MULTILINE)
    narrow = run("query", "SELECT rank, call FROM records LIMIT 2", "--out", str(STUDY)).output
    assert narrow.split()[:2] == ["rank", "call"]
    assert "…" not in wide + narrow


def test_where_nothing_failed_the_logs_say_so(tmp_path: Path, stub: ModuleType) -> None:
    """Reference: by hand, one cell that ended well; silence may mean anything."""
    write(tmp_path, stub, a_cell(), 0, "ok", "ok", "ok")
    result = run("logs", str(tmp_path))
    assert result.output == "none of 1 cells failed; name a key to see its logs\n"
