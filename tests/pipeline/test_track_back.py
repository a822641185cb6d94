"""From W&B back to records: offline run folders, and a project on a server that stands in."""

import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest
from typer.testing import CliRunner

from pipeline.cli import application
from pipeline.store import read_store
from pipeline.track import track
from pipeline.track_back import TrackBackError, take_offline, take_online
from tests.conftest import GOLDEN

STUDY = GOLDEN / "default_study"
KEY = "0123456789abcdef0123456789abcdef01234567"  # the shape of a W&B key


def files_of(folder: Path) -> dict[str, bytes]:
    found = [*folder.glob("records/*"), *folder.glob("specs/*")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded study, of which the cells at CP1 and EP1, EP2 have offline runs."""
    out = tmp_path_factory.mktemp("tracked") / "out"
    shutil.copytree(STUDY, out)
    for path in out.glob("specs/*.json"):
        if json.loads(path.read_text())["topology_name"] not in ("ep1_cp1", "ep2_cp1"):
            for other in [path, *out.glob(f"records/{path.stem}.*")]:
                other.unlink()
    track(read_store(out), mode="offline", project="peakcast", group="night")
    return out


def fit(folder: Path, table: Path) -> dict[str, object]:
    """Fit a folder's records; return the certificate, which has their hash."""
    result = CliRunner().invoke(application("fit"), ["fit", str(folder), "-o", str(table)])
    assert result.exit_code == 0, result.output
    return json.loads(table.with_suffix(".certificate.json").read_text())


def test_offline_runs_give_the_records_and_the_same_fit(tracked: Path, tmp_path: Path) -> None:
    """Reference: the records that were tracked, byte for byte, and the fit on them."""
    moved = tmp_path / "moved"  # runs lie where somebody copied them to, without the sweep
    shutil.copytree(tracked / "wandb", moved)
    out = tmp_path / "out"
    result = CliRunner().invoke(application("import"), ["import", str(moved), "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert files_of(out) == files_of(tracked)
    assert fit(out, tmp_path / "t.toml") == fit(tracked, tmp_path / "same" / "t.toml")


def test_a_run_without_records_is_said(tracked: Path, tmp_path: Path) -> None:
    """Law: a run that carries none is named; where none carries any, there is nothing to take."""
    runs = sorted((tracked / "wandb").glob("offline-run-*"))
    bare = tmp_path / "runs" / runs[0].name
    shutil.copytree(runs[0], bare)
    shutil.rmtree(bare / "files" / "records")
    with pytest.raises(TrackBackError, match="none of 1 runs carries records"):
        take_offline([bare.parent], tmp_path / "out")
    taken = take_offline([bare.parent, runs[1]], tmp_path / "out")
    assert taken.without == (bare.name,)
    assert taken.runs == 1


def test_two_runs_that_differ_are_not_mixed(tracked: Path, tmp_path: Path) -> None:
    """Law: one name, two contents: neither overwrites the other."""
    runs = sorted((tracked / "wandb").glob("offline-run-*"))
    other = tmp_path / "runs" / runs[0].name
    shutil.copytree(runs[0], other)
    path = min((other / "files" / "records").iterdir())
    path.write_text(path.read_text().replace("cold", "warm"))
    with pytest.raises(TrackBackError, match="one group of runs at a time"):
        take_offline([runs[0], other], tmp_path / "out")


class _Project(BaseHTTPRequestHandler):
    """Answers the requests that wandb 0.31's public API was seen to send, for a project of runs.

    Seen: POST /graphql in chunks, operations Viewer, GetDefaultEntity, Runs and RunFiles with the
    variables that are checked below; GET of each file's ``url`` with the key as basic
    authorization; POST /sdk/otel/v1/metrics, empty.
    """

    runs: dict[str, Path]
    asked: list[tuple[str, dict[str, object]]]

    def do_POST(self) -> None:
        body = self._body()
        if self.path != "/graphql":
            self._answer(b"")
            return
        asked = json.loads(body)
        operation = asked["query"].split("query", 1)[1].split("(")[0].split("{")[0].strip()
        variables = asked.get("variables") or {}
        self.asked.append((operation, variables))
        self._answer(json.dumps({"data": getattr(self, f"_{operation}")(variables)}).encode())

    def do_GET(self) -> None:
        assert self.headers["Authorization"].startswith("Basic ")
        _, run, name = unquote(self.path).split("/", 2)
        self._answer((self.runs[run] / name).read_bytes())

    def _Viewer(self, _: dict[str, object]) -> dict[str, object]:  # noqa: N802
        teams = {"edges": [{"node": {"name": "team"}}]}
        one = {"id": "1", "entity": "team", "username": "me", "email": "", "flags": "{}"}
        return {"viewer": one | {"teams": teams}}

    _GetDefaultEntity = _Viewer

    def _Runs(self, variables: dict[str, object]) -> dict[str, object]:  # noqa: N802
        assert (variables["entity"], variables["project"]) == ("team", "peakcast")
        assert json.loads(str(variables["filters"])) == {"group": "night"}
        names = ("sweepName", "commit", "description", "notes", "heartbeatAt", "jobType")
        blank = dict.fromkeys(names, "") | {"tags": [], "readOnly": True, "historyLineCount": 0}
        user = {"name": "me", "username": "me"}
        nodes = [
            blank
            | {"id": run, "name": run, "displayName": run, "state": "finished", "group": "night"}
            | {"createdAt": "2026-11-30T00:00:00", "user": user, "projectId": "1"}
            for run in self.runs
        ]
        page = self._page(nodes)
        return {"project": {"internalId": "1", "runCount": len(nodes), "runs": page}}

    def _RunFiles(self, variables: dict[str, object]) -> dict[str, object]:  # noqa: N802
        run, pattern = str(variables["name"]), str(variables["pattern"])
        assert pattern.endswith("/%")
        where = self.runs[run]
        host = f"http://{self.headers['Host']}"
        nodes = []
        for path in sorted((where / pattern[:-2]).iterdir()):
            name = str(path.relative_to(where))
            url = f"{host}/{run}/{name}"
            node = {"id": name, "name": name, "url": url, "directUrl": url, "md5": None}
            nodes.append(node | {"sizeBytes": 1, "mimetype": "text/plain", "updatedAt": None})
        strange = {"name": "records/../../outside.jsonl", "id": "x", "url": f"{host}/{run}/x"}
        nodes.append(nodes[0] | strange)
        page = {"fileCount": len(nodes), "files": self._page(nodes)}
        return {"project": {"internalId": "1", "run": page}}

    def _page(self, nodes: list[dict[str, object]]) -> dict[str, object]:
        edges = [{"node": node, "cursor": str(place)} for place, node in enumerate(nodes)]
        return {"edges": edges, "pageInfo": {"endCursor": "", "hasNextPage": False}}

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def project(
    tracked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[type[_Project]]:
    """A server on this machine with the runs of a project; wandb is told of it."""
    runs = sorted((tracked / "wandb").glob("offline-run-*"))

    class Project(_Project):
        pass

    Project.runs = {f"run{place}": run / "files" for place, run in enumerate(runs)}
    Project.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Project)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("HOME", str(tmp_path))
    yield Project
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_project_gives_the_records_and_the_same_fit(
    tracked: Path, project: type[_Project], tmp_path: Path
) -> None:
    """Reference: the records that were tracked; wandb's own client asks, a server stands in."""
    out = tmp_path / "out"
    source = "wandb:team/peakcast/night"
    result = CliRunner().invoke(application("import"), ["import", source, "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert {operation for operation, _ in project.asked} >= {"Runs", "RunFiles"}
    assert files_of(out) == files_of(tracked)
    assert not list(tmp_path.rglob("outside.jsonl"))
    assert fit(out, tmp_path / "t.toml") == fit(tracked, tmp_path / "same" / "t.toml")


@pytest.mark.parametrize("source", ["wandb:", "wandb:team", "wandb:/project"])
def test_a_source_that_names_no_project_is_refused(source: str, tmp_path: Path) -> None:
    """Law: the way out is in the message, and nothing is asked."""
    with pytest.raises(TrackBackError, match="wandb:entity/project"):
        take_online(source, tmp_path)
