"""Real ranks for tests: worker scripts of this folder, one process a rank, over gloo."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))  # for small_cells

TIMEOUT = 150


@pytest.fixture(scope="session")
def run_ranks(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, int], list[dict[str, Any]]]:
    """Run ``SCRIPT RANK FOLDER`` as so many ranks; return what each wrote to result.RANK.json."""

    def run(script: str, world: int) -> list[dict[str, Any]]:
        folder = tmp_path_factory.mktemp(Path(script).stem)
        logs = [(folder / f"log.{rank}").open("w") for rank in range(world)]
        ranks = [
            subprocess.Popen(
                [sys.executable, str(FOLDER / script), str(rank), str(folder)],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            for rank, log in enumerate(logs)
        ]
        try:
            codes = [rank.wait(TIMEOUT) for rank in ranks]
        finally:
            for rank, log in zip(ranks, logs, strict=True):
                rank.kill()
                rank.wait()
                log.close()
        said = "\n".join(Path(log.name).read_text()[-3000:] for log in logs)
        assert codes == [0] * world, said
        return [json.loads((folder / f"result.{rank}.json").read_text()) for rank in range(world)]

    return run


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """This process as the only rank."""
    import torch

    from jobs.backend import cpu
    from planner.topology import Topology

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    cpu.start(0, 1, Topology(), f"file://{tmp_path}/rendezvous")
    yield
    cpu.stop()
    torch.set_num_threads(threads)
