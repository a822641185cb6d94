"""What a user's settings of PyTorch's allocator lead to, on the emulated device."""

import json

import pytest

from tests.emulated.emulated import on_device


@pytest.fixture
def senseless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings that PyTorch refuses as it takes a device up."""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "nonsense:1")


@pytest.mark.usefixtures("senseless")
def test_a_device_that_cannot_be_used_is_one_line() -> None:
    """Reference: PyTorch's own words; the module's exit codes."""
    done = on_device("-m", "jobs.cuda.devices", devices=2)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "torch sees 2 CUDA devices and cannot use them: "
        "Unrecognized key 'nonsense' in CUDA allocator config.\n"
    )


@pytest.mark.usefixtures("senseless")
def test_the_doctor_lays_it_at_the_device_and_not_at_torch() -> None:
    """Reference: CPU sweeps run with such settings, so that torch itself is well."""
    done = on_device("-m", "pipeline.cli", "doctor", "--json")
    found = {one["name"]: one for one in json.loads(done.stdout)["findings"]}
    assert found["torch"]["status"] == "ok"
    assert found["cuda"]["status"] == "broken"
    assert "PYTORCH_ALLOC_CONF" in found["cuda"]["fix"]


def test_cuda_s_own_pool_is_refused_with_the_way_out(tmp_path, monkeypatch) -> None:
    """Reference: PyTorch's documentation: that backend tells no blocks."""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync")
    study = ("study=h200_single", "model=tiny", "workload=default", "model.num_layers=2")
    done = on_device("-m", "pipeline", *study, "tracker=disabled", f"out={tmp_path}")
    assert done.returncode == 1
    assert "asks for backend:cudaMallocAsync" in done.stdout
    assert "take backend:native" in done.stdout
