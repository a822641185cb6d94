"""Python and its libraries, and through them the device."""

import importlib.util
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pipeline.doctor.finding import EVERY_SWEEP, Finding, absent, broken, here
from pipeline.doctor.probe import ask_python

OLDEST, TOO_NEW = (3, 11), (3, 14)
ON_DEVICE = "runs on GPUs"

TORCH = """
import json, torch
gpus, trouble = [], None
if torch.cuda.is_available():
    try:
        for number in range(torch.cuda.device_count()):
            of = torch.cuda.get_device_properties(number)
            gpus.append([of.name, of.total_memory])
    except (RuntimeError, ValueError) as error:
        trouble = type(error).__name__
nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
print(json.dumps({
    "version": torch.__version__, "cuda": torch.version.cuda, "gpus": gpus,
    "trouble": trouble,
    "nccl": ".".join(map(str, torch.cuda.nccl.version())) if nccl else None,
    "gloo": torch.distributed.is_available() and torch.distributed.is_gloo_available(),
}))
"""


def python() -> Finding:
    """Look at the interpreter."""
    found = f"{platform.python_version()}, {sys.executable}"
    if OLDEST <= sys.version_info[:2] < TOO_NEW:
        return here("python", found, EVERY_SWEEP)
    fix = "make PYTHON=python3.12 sets the project up with another; 3.11 to 3.13 are supported"
    return broken("python", found, EVERY_SWEEP, fix)


def torch_and_device() -> Iterator[Finding]:
    """Import torch in a process of its own; tell of it, of CUDA and of NCCL."""
    install = "pip install -c constraints.txt -e '.[jobs]'"
    if importlib.util.find_spec("torch") is None:
        yield absent("torch", "not installed", EVERY_SWEEP, install)
        yield from _no_torch("torch is not installed", install)
        return
    told, trouble = ask_python(TORCH)
    if trouble:
        yield broken("torch", trouble, EVERY_SWEEP, f"install it again: {install}")
        yield from _no_torch("torch does not import", install)
        return
    if told["gloo"]:
        yield here("torch", told["version"], EVERY_SWEEP)
    else:
        yield broken("torch", f"{told['version']}, built without gloo", EVERY_SWEEP, install)
    yield _cuda(told)
    if told["nccl"]:
        yield here("nccl", told["nccl"], ON_DEVICE)
    else:
        fix = "it comes with a CUDA build of torch (pytorch.org/get-started)"
        yield absent("nccl", "this torch is built without it", ON_DEVICE, fix)


def _no_torch(why: str, fix: str) -> Iterator[Finding]:
    yield absent("cuda", why, ON_DEVICE, fix)
    yield absent("nccl", why, ON_DEVICE, fix)


def _cuda(told: dict[str, Any]) -> Finding:
    if told["trouble"]:
        found = f"{told['cuda']}: torch raises {told['trouble']} as it takes a GPU up"
        fix = "see what python -m jobs.cuda.devices says; PYTORCH_ALLOC_CONF may be at fault"
        return broken("cuda", found, ON_DEVICE, fix)
    if told["gpus"]:
        names = ", ".join(f"{name} ({size / 2**30:.0f} GiB)" for name, size in told["gpus"])
        return here("cuda", f"{told['cuda']}: {names}", ON_DEVICE)
    if told["cuda"] is None:
        fix = "install a CUDA build of torch (pytorch.org/get-started)"
        return absent("cuda", f"torch {told['version']} is built without it", ON_DEVICE, fix)
    fix = "see that nvidia-smi lists a GPU, and that CUDA_VISIBLE_DEVICES hides none"
    return absent("cuda", f"torch is built for {told['cuda']} and sees no GPU", ON_DEVICE, fix)


def installed(name: str, needed_for: str, fix: str) -> Finding:
    """Look for a pure Python distribution, without importing it."""
    try:
        return here(name, version(name), needed_for)
    except PackageNotFoundError:
        return absent(name, "not installed", needed_for, fix)


def extension(module: str, needed_for: str, fix: str) -> Finding:
    """Import a module with compiled parts in a process of its own."""
    if importlib.util.find_spec(module) is None:
        return absent(module, "not installed", needed_for, fix)
    version_of = "str(getattr(it, '__version__', 'installed'))"
    told, trouble = ask_python(f"import json, {module} as it; print(json.dumps({version_of}))")
    if trouble:
        return broken(module, trouble, needed_for, f"it does not import here; {fix}")
    return here(module, told, needed_for)
