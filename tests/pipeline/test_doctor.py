"""`peakcast doctor` on machines that lack things, hold broken things, or hold a secret."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from pipeline.cli import main
from pipeline.commands.doctor import show
from pipeline.doctor.allocator import VARIABLES, allocator
from pipeline.doctor.cluster import slurm
from pipeline.doctor.examine import NAMES, lacking
from pipeline.doctor.finding import EVERY_SWEEP, Finding, absent, broken, here
from pipeline.doctor.libraries import extension
from pipeline.doctor.place import kind_of, place
from pipeline.doctor.probe import Answer, ask
from pipeline.doctor.services import chromium
from tests.pipeline.conftest import ROOT
from tests.waiting import is_alive, until

SECRET = "0123456789abcdef0123456789abcdef01234567"  # the shape of a W&B key

Tool = Callable[[str, str], None]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """Put a program on a PATH that holds nothing else of ours."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return make


def by_name(findings: object) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


class _Wandb(BaseHTTPRequestHandler):
    """Answers as W&B's server does when it is asked who a key belongs to."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        teams = {"edges": []}
        viewer = {"id": "1", "entity": "me", "username": "me", "flags": "{}", "teams": teams}
        answer = json.dumps({"data": {"viewer": viewer}}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def wandb_server() -> Iterator[str]:
    """A server on this machine that takes any key."""
    server = HTTPServer(("127.0.0.1", 0), _Wandb)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_bare_machine_is_told_what_it_lacks_and_no_secret(
    tmp_path: Path, wandb_server: str
) -> None:
    """Reference: the stated exit codes and names; an empty PATH, a planted key."""
    (tmp_path / "home").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", "doctor", "--json", "--require", "slurm"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={
            "PATH": "",
            "HOME": str(tmp_path / "home"),
            "PYTHONPATH": str(ROOT),
            "WANDB_API_KEY": SECRET,
            "WANDB_BASE_URL": wandb_server,
        },
    )
    assert done.returncode == 1, done.stderr
    assert SECRET not in done.stdout + done.stderr
    document = json.loads(done.stdout)
    found = {finding["name"]: finding for finding in document["findings"]}
    assert document["ok"] is False
    assert tuple(found) == NAMES
    assert found["wandb"]["found"] == "it takes the key that is set"
    for name in ("slurm", "accounting", "scrontab", "chromium"):
        assert found[name]["status"] == "absent"
    for finding in found.values():
        assert bool(finding["fix"]) == (finding["status"] != "ok"), "each with its fix"
    assert {path.name for path in tmp_path.iterdir()} == {"home"}, "nothing is left behind"


def test_people_read_every_fix_and_what_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    """Reference: the findings given; square brackets are no markup."""
    fine = here("torch", "2.13 [cpu]", EVERY_SWEEP)
    other = absent("cuda", "none", "runs on GPUs", "see nvidia-smi [1]")
    show([fine, other], [])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["ok", "torch", "2.13", "[cpu]", "every", "sweep"]
    assert lines[-2:] == ["cuda: see nvidia-smi [1]", "every sweep's needs are met"]
    show([fine, other], [other])
    assert capsys.readouterr().out.endswith("needed and not here: cuda\n")


def test_exit_codes_follow_what_is_needed() -> None:
    """Reference: the stated rule."""
    every = broken("space", "1 MiB", EVERY_SWEEP, "make room")
    other = absent("cuda", "none", "runs on GPUs", "buy one")
    fine = here("torch", "2.13", EVERY_SWEEP)
    assert lacking([every, other, fine], []) == [every]
    assert lacking([other, fine], []) == []
    assert lacking([other, fine], ["cuda", "torch"]) == [other]


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("PYTORCH_ALLOC_CONF", "expandable_segments:True", "ok"),
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128, expandable_segments : True", "ok"),
        ("PYTORCH_ALLOC_CONF", "expandable_segments:False", "absent"),
        ("PYTORCH_ALLOC_CONF", "expandable_segments:true", "absent"),
        ("PYTORCH_ALLOC_CONF", "backend : cudaMallocAsync", "broken"),
        ("NOTHING", "", "absent"),
    ],
)
def test_what_fragments_cost_is_told(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, status: str
) -> None:
    """Reference: PyTorch's names for its allocator's settings, and `planner.fragments`."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, value)
    found = allocator()
    assert found.status == status
    assert ("expandable_segments:True" in found.fix) is (status != "ok")


@pytest.mark.parametrize("older", ["", "expandable_segments:False"])
def test_the_older_name_of_the_allocator_s_settings_wins(
    monkeypatch: pytest.MonkeyPatch, older: str
) -> None:
    """Reference: torch 2.14.1 with both set, asked on the emulated device for what it took."""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", older)
    found = allocator()
    assert found.status == "absent"
    assert found.fix == "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def test_a_slurm_that_answers_in_parts(tool: Tool) -> None:
    """Reference: the words of Slurm's own commands."""
    tool("sinfo", "echo 'main* 2'; echo gpu 16")
    tool("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    tool("scontrol", "echo 'ScronParameters         = enable'")
    assert by_name(slurm())["scrontab"].status == "absent", "no such command yet"
    tool("scrontab", "exit 0")
    found = by_name(slurm())
    assert found["slurm"].found == "main* (2 nodes), gpu (16 nodes)"
    assert found["accounting"].status == "broken"
    assert found["accounting"].found == "sacct: Slurm accounting storage is disabled"
    assert found["scrontab"].is_ok


def test_a_slurm_that_does_not_answer(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reference: the tool's own last words, a secret in them hidden."""
    monkeypatch.setenv("SITE_TOKEN", SECRET)
    tool("sinfo", f"echo first >&2; echo 'no contact with {SECRET}' >&2; exit 1")
    found = by_name(slurm())
    assert found["slurm"].status == "broken"
    assert found["slurm"].found == "sinfo: no contact with (hidden)"
    assert {found["accounting"].status, found["scrontab"].status} == {"absent"}


def test_a_program_that_hangs_is_stopped_with_its_children(tool: Tool, tmp_path: Path) -> None:
    """Reference: the limit given; the child's own note of its pid."""
    note = tmp_path / "pid"
    tool("sinfo", f"/bin/sleep 600 & echo $! > {note}; wait")
    assert ask(["sinfo"], limit_s=1) == Answer(None, "no answer within 1 s")
    until(lambda: not is_alive(int(note.read_text())))


def test_a_browser_is_found_by_any_of_its_names(tool: Tool) -> None:
    """Reference: what --version prints; one that cannot run is broken, not absent."""
    assert chromium().status == "absent"
    tool("google-chrome", "echo Google Chrome 150.0")
    assert chromium().found == "Google Chrome 150.0"
    tool("chromium", "kill -SEGV $$")
    assert chromium().found == "chromium: killed by SIGSEGV"


def test_an_extension_that_crashes_costs_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reference: what such a module does when it is imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name, body, status, found in (
        ("peakcast_fine", "__version__ = '1.2'", "ok", "1.2"),
        ("peakcast_torn", "import no_such_library", "broken", "ModuleNotFoundError: No module"),
        ("peakcast_crash", "import os; os.abort()", "broken", "killed by SIGABRT"),
    ):
        (tmp_path / f"{name}.py").write_text(body + "\n")
        finding = extension(name, "tests", "build it")
        assert (finding.status, finding.found[: len(found)]) == (status, found)
    assert extension("peakcast_none", "tests", "build it").status == "absent"


def test_the_kind_of_file_system_is_that_of_the_nearest_mount() -> None:
    """Reference: proc_mounts(5), in which a blank is \\040; by hand."""
    mounts = (
        "none / overlay rw 0 0\n"
        "server:/x /shared nfs4 rw 0 0\n"
        "disk /shared/local ext4 rw 0 0\n"
        "lfs /big\\040one lustre rw 0 0\n"
    )
    places = ("/home", "/shared/run", "/shared/local/run", "/sharedother", "/big one/run")
    kinds = [kind_of(Path(place), mounts) for place in places]
    assert kinds == ["overlay", "nfs4", "ext4", "overlay", "lustre"]


def test_a_folder_that_cannot_be_written_is_said() -> None:
    """Reference: the kernel's own words for /proc, in which nothing can be made."""
    found = by_name(place(Path("/proc/no/such")))
    assert found["results"].status == "broken"
    assert found["results"].found.startswith("/proc: ")
    assert os.strerror(2) in found["results"].found


def test_a_name_it_does_not_know_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    """Reference: the stated exit codes; the message lists the names."""
    with pytest.raises(SystemExit) as left:
        main(["doctor", "--require", "kuda"])
    assert left.value.code == 2
    assert "--require kuda: it looks at python, torch, cuda" in capsys.readouterr().err
