"""The report made again from records, as a shell runs it."""

from pathlib import Path

import pytest

from pipeline.cli import main


def test_a_folder_without_records_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reference: house rule 7."""
    with pytest.raises(SystemExit) as left:
        main(["report", str(tmp_path)])
    assert left.value.code == 2
    assert f"{tmp_path} holds no records" in capsys.readouterr().err
