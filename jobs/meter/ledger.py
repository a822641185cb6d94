"""Ledger: live bytes of a process, by following tensor storages from birth to death.

Inside a call a dispatch mode sees every operator. Each storage among the outputs that is not known
yet is an allocation; a weak reference to the storage tells of its death, by reference count, when
the memory is really given back. Views and in-place results lie on known storages and count once. A
custom operator is one operator: what it frees before it returns is not seen, nor is what is made
with dispatch modes disabled.
"""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from jobs.meter.allocation import Allocation, block_bytes
from jobs.meter.call import Call, LedgerError, total
from jobs.meter.place import Whereabouts


class Ledger:
    """Follows the storages of one process, call by call.

    Register what is resident (`attach`, `register`) before the first call: a storage that is
    neither registered nor allocated under the ledger is counted in no figure but
    ``unregistered_bytes``.

    Parameters
    ----------
    device
        Type of the device whose storages count: beside a CUDA rank's model lie small host tensors.
    """

    def __init__(self, device: str = "cpu") -> None:
        self._on_cuda = device == "cuda"
        self.live_bytes = 0
        self._watches: dict[int, _Watch] = {}
        self._dead: list[_Watch] = []
        self._number = 0
        self._calls = 0
        self._call: Call | None = None
        self._where = Whereabouts()
        self._trainable: list[tuple[str, nn.Parameter]] = []
        self._op_names: dict[object, str] = {}

    def attach(self, model: nn.Module) -> None:
        """Name the modules of ``model`` and register its parameters and buffers as resident."""
        self._where.name(model)
        for name, parameter in model.named_parameters():
            self.register(name, parameter, kind="parameter")
            if parameter.requires_grad:
                self._trainable.append((name, parameter))
        for name, buffer in model.named_buffers():
            self.register(name, buffer, kind="buffer")

    def register(self, name: str, tensor: torch.Tensor, kind: str = "input") -> None:
        """Count ``tensor``'s storage as resident until it dies: part of every later baseline."""
        if tensor.is_cuda is not self._on_cuda:
            return
        self._bury()
        storage = tensor.untyped_storage()
        watch = self._watches.get(storage._cdata)
        if watch is None:
            watch = self._watch(storage)
        elif watch.allocation is not None:
            self._forget(watch.allocation)
        self._number += 1
        watch.allocation = Allocation(
            number=self._number,
            nbytes=block_bytes(watch.nbytes),
            call=None,
            phase="between",
            module=name,
            op=kind,
            node="",
            shape=tuple(tensor.shape),
            dtype=dtype_name(tensor),
        )
        self.live_bytes += watch.allocation.nbytes

    @property
    def held_over_bytes(self) -> int:
        """Bytes that earlier calls allocated and that are alive now; ask between calls."""
        self._bury()
        return total(self._held_over())

    def resident(self) -> list[int]:
        """Return the bytes of each registered storage that lives, in their order."""
        found = (watch.allocation for watch in self._watches.values())
        return [one.nbytes for one in found if one is not None and one.call is None]

    def collect_garbage(self) -> tuple[Allocation, ...]:
        """Run the cyclic collector; return what calls had allocated and only it could free.

        Such storages are garbage: nothing refers to them but a cycle of dead objects. What is still
        alive afterwards is held over. Ask between calls.
        """
        self._bury()
        alive = self._held_over()
        gc.collect()
        self._bury()
        return tuple(a for a in alive if a.died is not None)

    @contextmanager
    def call(self) -> Iterator[Call]:
        """Follow one call; its `CallLedger` is ``call.result`` once the block is left.

        An error that leaves the block closes the call as well.

        Tensors that the caller still names when the block ends count as left over.

        Raises
        ------
        LedgerError
            When a call is already being followed.
        """
        if self._call is not None:
            raise LedgerError(
                f"call {self._call.index} is still being followed; leave it before starting another"
            )
        self._bury()
        call = self._call = Call(
            self._calls, self.live_bytes, self._held_over(), self._forward_done
        )
        self._calls += 1
        hooks = [
            parameter.register_post_accumulate_grad_hook(self._gradient_hook(name))
            for name, parameter in self._trainable
        ]
        self._where.install()
        try:
            with _Dispatch(self):
                yield call
        finally:
            self._where.remove()
            for hook in hooks:
                hook.remove()
            self._close(call)

    def _held_over(self) -> tuple[Allocation, ...]:
        live = (watch.allocation for watch in self._watches.values())
        return tuple(a for a in live if a is not None and a.call is not None)

    def _close(self, call: Call) -> None:
        self._mark()
        self._call = None
        call.seconds += self._where.seconds
        call.close(self._number)

    def _forward_done(self) -> int:
        self._where.forward_done()
        return self._mark()

    def _mark(self) -> int:
        """Advance the order of allocations past every death so far; return the moment's number."""
        self._bury()
        self._number += 1
        return self._number

    def _bury(self) -> None:
        """Take the dead off the books, as having died after the last allocation."""
        dead = self._dead
        while dead:
            watch = dead.pop()
            if self._watches.get(watch.key) is watch:
                del self._watches[watch.key]
            if watch.allocation is not None:
                self._forget(watch.allocation)

    def _forget(self, allocation: Allocation) -> None:
        allocation.died = self._number
        self.live_bytes -= allocation.nbytes
        if self._call is not None and allocation.call == self._call.index:
            self._call.own_bytes -= allocation.nbytes

    def _watch(self, storage: torch.UntypedStorage) -> "_Watch":
        watch = _Watch(storage, self._dead.append)
        watch.key = storage._cdata
        watch.nbytes = storage.nbytes()
        watch.allocation = None
        self._watches[watch.key] = watch
        return watch

    def _see(self, tensor: torch.Tensor, func: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        """Account for one output of operator ``func``."""
        if tensor.is_cuda is not self._on_cuda:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        watch = self._watches.get(key)
        if watch is None:
            watch = self._watch(storage)
            if _touches(key, args) or (kwargs and _touches(key, kwargs.values())):
                self._call.unregistered_bytes += block_bytes(watch.nbytes)
                return
        else:
            nbytes = storage.nbytes()
            if nbytes == watch.nbytes:
                return
            watch.nbytes = nbytes
            if watch.allocation is None:
                return
            self._forget(watch.allocation)
        watch.allocation = self._allocate(tensor, watch.nbytes, func)

    def _allocate(self, tensor: torch.Tensor, nbytes: int, func: Any) -> Allocation:
        call = self._call
        self._number += 1
        name = self._op_names.get(func)
        if name is None:
            name = self._op_names[func] = op_name(func)
        phase, module, node = self._where.now()
        allocation = Allocation(
            number=self._number,
            nbytes=block_bytes(nbytes),
            call=call.index,
            phase=phase,
            module=module,
            op=name,
            node=node,
            shape=tuple(tensor.shape),
            dtype=dtype_name(tensor),
        )
        self.live_bytes += allocation.nbytes
        call.add(allocation, self.live_bytes)
        return allocation

    def _gradient_hook(self, name: str) -> Callable[[torch.Tensor], None]:
        def mark(parameter: torch.Tensor) -> None:
            start = perf_counter()
            watch = self._watches.get(parameter.grad.untyped_storage()._cdata)
            if watch is not None and watch.allocation is not None:
                watch.allocation.gradient_of = name
            self._call.seconds += perf_counter() - start

        return mark


class _Watch(weakref.ref):  # type: ignore[type-arg]
    """Weak reference to a storage, with its address, size and allocation (None: unregistered).

    Its callback is ``list.append``: no Python code runs while a storage dies, wherever that
    happens; the dead are taken off the books before the next operator's outputs are looked at.
    """

    __slots__ = ("allocation", "key", "nbytes")

    allocation: Allocation | None
    key: int
    nbytes: int


class _Dispatch(TorchDispatchMode):
    """Shows the ledger every operator's outputs."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        output = func(*args, **(kwargs or {}))
        ledger = self._ledger
        start = perf_counter()
        ledger._bury()
        if isinstance(output, torch.Tensor):
            ledger._see(output, func, args, kwargs)
        elif output is not None:
            for leaf in tree_leaves(output):
                if isinstance(leaf, torch.Tensor):
                    ledger._see(leaf, func, args, kwargs)
        ledger._call.seconds += perf_counter() - start
        return output


def _touches(key: int, values: Any) -> bool:
    """Whether a tensor among ``values`` lies on the storage at ``key``."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.untyped_storage()._cdata == key:
                return True
        elif isinstance(value, (list, tuple)) and _touches(key, value):
            return True
    return False


def op_name(func: Any) -> str:
    """Name an operator as people do: ``mm``, ``add.Tensor``, ``c10d.allreduce_``."""
    return str(func).removeprefix("aten.").removesuffix(".default")


def dtype_name(tensor: torch.Tensor) -> str:
    """Name a tensor's dtype without its ``torch.``."""
    return str(tensor.dtype).removeprefix("torch.")
