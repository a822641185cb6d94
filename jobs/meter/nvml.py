"""Used bytes of a device from NVIDIA's management library, by its C interface.

It needs no CUDA context, so that it also sees what making one takes.
"""

import ctypes
from collections.abc import Callable

LIBRARY = "libnvidia-ml.so.1"


class NvmlError(RuntimeError):
    """The library is missing, or refuses."""


class _Memory(ctypes.Structure):
    """``nvmlMemory_t``: bytes."""

    _fields_ = [
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


def used_reader(uuid: str, library: ctypes.CDLL | None = None) -> Callable[[], int]:
    """Return what reads the used bytes of the device with this UUID (``GPU-…``).

    Bytes are those of all processes on the device, and what the driver keeps for itself.

    Parameters
    ----------
    library
        The library, loaded; by default the system's.

    Raises
    ------
    NvmlError
        When the library is missing or refuses, with its own words.
    """
    if library is None:
        try:
            library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise NvmlError(f"{LIBRARY} cannot be loaded: {error}") from error
    _call(library, "nvmlInit_v2")
    device = ctypes.c_void_p()
    _call(library, "nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(device))

    def used() -> int:
        memory = _Memory()
        _call(library, "nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
        return int(memory.used)

    return used


def _call(library: ctypes.CDLL, name: str, *arguments: object) -> None:
    code = getattr(library, name)(*arguments)
    if code:
        describe = library.nvmlErrorString
        describe.restype = ctypes.c_char_p
        words = describe(code) or b"no description"
        raise NvmlError(f"{name}: {words.decode()} (code {code})")
