"""What the models that one client has prepared on one device take: their number, their threads, and
bytes of a host's memory.

Constants are mapped once, and counted where they are. A driver may have a form of its own of each
model: what all models read of one pool of constants counts beyond the pool's size, and the pool for
as long as any of them lives.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import chain
from typing import Final

from penstock.errors import ResourceExhaustedTransient
from penstock.ipc.account import LEAST_COUNTED, Account
from penstock.ipc.constants import hold
from penstock.ir import ConstantPool, Model, Operand, Variable

MAX_PREPARED: Final = 1024
"""Prepared models that one client may have at a time on one device."""

MOST_THREADS: Final = os.cpu_count() or 1
"""Threads that a client may have one of them compute on: as many as there are processors."""


def threads_of_all(processors: int) -> int:
    """Half of the tasks that Linux has room for unless told otherwise: 1024 a processor, 32,768 at
    least (`kernel/pid.c`). So 512 models may take every processor, however many there are.
    """
    return 512 * max(32, processors)


MAX_THREADS: Final = threads_of_all(MOST_THREADS)
"""Threads that all of them on one device may compute on: engines keep some for each model."""

BYTES_OF_FORM: Final = 16
"""Bytes of memory that one byte of a model's message becomes, rounded up."""


def form_bytes(message_bytes: int) -> int:
    """What counts for the model of a message of that length; nothing for what is not counted as it
    comes.
    """
    return BYTES_OF_FORM * message_bytes if message_bytes > LEAST_COUNTED else 0


class Preparations:
    """Those of one client on one device: a host that has several devices counts for each by itself.
    Thread-safe.
    """

    def __init__(self) -> None:
        self._count = self._threads = 0
        self._read: weakref.WeakKeyDictionary[ConstantPool, int] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def place(
        self,
        account: Account | None,
        num_threads: int | None,
        nbytes: int,
        model: Model | None = None,
    ) -> Callable[[], None]:
        """Makes room for a prepared model, of *nbytes* beside its constants; what is given takes
        the room back, once.

        Raises `ResourceExhaustedTransient` where there is none, with the client or in its
        *account*.
        """
        threads = MOST_THREADS if num_threads is None else max(1, num_threads)
        self._count_one(threads)
        undone = ExitStack()
        undone.callback(self._discount_one, threads)
        try:
            for pool, length in ({} if model is None else constants_read(model)).items():
                undone.callback(hold(pool))
                nbytes += self._read_more(pool, length)
                undone.callback(self._read_less, weakref.ref(pool), length)
            if account is not None:
                undone.callback(account.own(nbytes).release)
        except BaseException:
            undone.close()
            raise
        return undone.close

    def _count_one(self, threads: int) -> None:
        with self._lock:
            if self._count >= MAX_PREPARED:
                raise ResourceExhaustedTransient(
                    f"a client may have {MAX_PREPARED} prepared models at a time on one device"
                )
            if self._threads + threads > MAX_THREADS:
                raise ResourceExhaustedTransient(
                    f"a client may have prepared models compute on {MAX_THREADS} threads at a time on one device"
                )
            self._count += 1
            self._threads += threads

    def _discount_one(self, threads: int) -> None:
        with self._lock:
            self._count -= 1
            self._threads -= threads

    def _read_more(self, pool: ConstantPool, length: int) -> int:
        """How many bytes more than *pool* has are read of it from now on."""
        with self._lock:
            before = self._read.get(pool, 0)
            self._read[pool] = before + length
        return max(0, before + length - max(before, len(pool)))

    def _read_less(self, known: weakref.ref[ConstantPool], length: int) -> None:
        pool = known()
        if pool is not None:
            with self._lock:
                self._read[pool] -= length


def constants_read(model: Model) -> dict[ConstantPool, int]:
    """Bytes that the constants of *model* take, by the pool that they lie in; what several name
    counts once.
    """
    operands = chain.from_iterable(graph.operands for graph in model.subgraphs)
    items: Iterable[Operand | Variable] = chain(model.variables, operands)
    places = {item.location for item in items if item.location is not None}
    found: dict[ConstantPool, int] = {}
    for place in places:
        pool = model.pools[place.pool]
        found[pool] = found.get(pool, 0) + place.length
    return found
