"""Limits NumPy's BLAS to a single thread while the reference driver runs.

OpenBLAS divides a product among a pool of threads, one for each processor, and waits for the
slowest thread. If other programs use the processors, this wait takes 10 to 100 times as long as the
product itself. The pool would also exceed `num_threads`, and the order of its sums would depend on
the machine.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from importlib import import_module
from itertools import product
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct

from penstock.drivers.reference.index import MODULES
from penstock.ir import Model, Operand, Operation, Subgraph
from penstock.ir.types import static_shape

LEAST_DIVIDED: Final = 9216
"""The least number of multiply-accumulates that OpenBLAS divides: a matrix times a vector."""

POSIX_THREADS: Final = 1
"""`openblas_get_parallel` of an OpenBLAS that creates threads itself, also on Windows."""

MULTIPLYING: Final = frozenset(
    key
    for module, keys in MODULES.items()
    if module.startswith(("layers.", "recurrent."))
    or module in {"detection.regions", "sound", "stablehlo.products"}
    for key in keys.split()
)
"""Rows of the operation table whose kernels use matrix products."""


def may_divide(model: Model) -> bool:
    """Whether BLAS may divide a product of *model*; small networks need no limit."""
    return any(
        operation.key in MULTIPLYING and _bound(subgraph, operation) >= LEAST_DIVIDED
        for subgraph in model.subgraphs
        for operation in subgraph.operations
    )


def _bound(subgraph: Subgraph, operation: Operation) -> float:
    """The most multiply-accumulates of a product of *operation*; infinite for an unknown shape."""
    inputs, outputs = (
        max((_count(subgraph.operands[i]) for i in indexes), default=0.0)
        for indexes in (operation.inputs, operation.outputs)
    )
    return inputs * outputs


def _count(operand: Operand) -> float:
    shape = static_shape(operand.shape) if operand.has_value else ()
    return float("inf") if shape is None else float(prod(shape))


class Pool(Struct, frozen=True):
    """The thread pool of a BLAS: functions that get and set its size for the whole process."""

    get: Callable[[], int]
    set: Callable[[int], object]


class SingleThread:
    """A context in which NumPy's BLAS computes on the calling thread.

    It is thread-safe, and several threads may enter it: the last thread that leaves restores the
    pool's size. Meanwhile NumPy products in other threads of the process are limited too, because
    OpenBLAS has one size for all threads. (threadpoolctl supports only one thread that sets it.)
    """

    def __init__(self, find: Callable[[], Pool | None]) -> None:
        """*find* is called once, by `find`. If it returns None, the context has no effect."""
        self._find = find
        self._lock = threading.Lock()
        self._inside = 0
        self._pool: Pool | None = None
        self._found = False
        self._size: int | None = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def find(self) -> None:
        """Finds the pool, which `__enter__` needs. The first call takes part of a millisecond."""
        with self._lock:
            if not self._found:
                self._pool, self._found = self._find(), True

    def __enter__(self) -> None:
        if self._pool is None:
            return
        with self._lock:
            if not self._inside:
                # In a child that was forked during a run, the pool is still limited.
                self._size = self._size or self._pool.get()
                self._pool.set(1)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        if self._pool is None:
            return
        with self._lock:
            self._inside -= 1
            if not self._inside and self._size is not None:
                self._pool.set(self._size)
                self._size = None

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0


def find_pool() -> Pool | None:
    """The pool of the OpenBLAS that NumPy uses. None for another BLAS, and for an OpenBLAS without
    threads or with OpenMP's, whose size is per thread.
    """
    # `PyDLL` does not release Python's lock during a call. Releasing and reacquiring it would take
    # longer than the call.
    from ctypes import PyDLL

    for path in _libraries():
        try:
            library = PyDLL(str(path))
        except OSError:
            continue
        for prefix, suffix in product(("scipy_", ""), ("64_", "")):
            parallel, get, set_number = (
                getattr(library, f"{prefix}openblas_{name}{suffix}", None)
                for name in ("get_parallel", "get_num_threads", "set_num_threads")
            )
            if parallel is not None and get is not None and set_number is not None:
                return Pool(get, set_number) if parallel() == POSIX_THREADS else None
    return None


def _libraries() -> list[Path]:
    """Files that may contain NumPy's BLAS: its wheel's library, or the one it is linked with."""
    package = Path(np.__file__).parent
    folders = package.with_name("numpy.libs"), package / ".dylibs"
    brought = [each for folder in folders for each in sorted(folder.glob("*openblas*"))]
    linked = import_module("numpy._core._multiarray_umath").__file__
    return [*brought, *([Path(linked)] if linked else [])]


SINGLE_THREAD: Final = SingleThread(find_pool)
