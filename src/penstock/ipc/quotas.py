"""Quotas of a host process's clients: memory, prepared models and threads.

Usage is counted and bounded for each connection, each user, and all clients together. A client is
charged for what the host maps or keeps for it: pools, rings, models, messages. Memory that is
mapped several times counts once; each further mapping counts the size of its page tables.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Final, NamedTuple, Self

from penstock import knobs
from penstock.errors import InvalidArgument, ResourceExhaustedTransient
from penstock.hal import Memory
from penstock.ipc.system import descriptor_in, may_grow
from penstock.ir import ConstantPool, Model, Operand, Variable
from penstock.memory.limits import MIB, available_memory
from penstock.memory.mapping import MappedFd, size_of

PAGE_TABLE_SHARE: Final = 512
"""Bytes of memory that one byte of a page table maps: pages of 4096 have entries of 8."""

MAX_MAPPED: Final = 1 << 13
"""Most mappings of one account at a time; a process can have about 65,000."""

LEAST_COUNTED: Final = 4096
"""Messages up to this size are not counted."""


class _Part(NamedTuple):
    """*nbytes* charged to *payer*, for a use of *memory* or for bytes outside any memory (None)."""

    payer: Account
    nbytes: int
    memory: tuple[int, int] | None


class Charge:
    """Bytes that count until `release`."""

    __slots__ = ("_parts", "_returned")

    def __init__(self, returned: deque[_Part], *parts: _Part) -> None:
        self._returned, self._parts = returned, list(parts)

    def release(self) -> None:
        """Ends the charge. Takes no lock, so finalizers may call it. A second call does nothing."""
        while self._parts:
            try:
                self._returned.append(self._parts.pop())
            except IndexError:
                return


NOTHING: Final = Charge(deque())
"""A charge of zero bytes."""


class SharedCharge:
    """The charge for a pool of constants with several holders; the last one releases it."""

    def __init__(self, charge: Charge) -> None:
        self._charge, self._holders = charge, 1
        self._lock = threading.RLock()

    def hold(self) -> None:
        with self._lock:
            self._holders += 1

    def drop(self) -> None:
        # A finalizer may call this at any time, also during `hold` in the same thread.
        with self._lock:
            self._holders -= 1
            last = not self._holders
        if last:
            self._charge.release()


constant_charges: Final[weakref.WeakKeyDictionary[ConstantPool, SharedCharge]] = (
    weakref.WeakKeyDictionary()
)
"""The charges of pools of constants that a client was charged for."""


class _Memory:
    """Memory that is mapped at least once: how many bytes, how often, and which accounts pay."""

    def __init__(self) -> None:
        self.nbytes = self.uses = 0
        self.paid: list[_Part] = []


class _Book:
    """State that all accounts of a host share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.returned: deque[_Part] = deque()
        self.memories: dict[tuple[int, int], _Memory] = {}

    def settle(self) -> None:
        """Subtracts released charges. The caller holds the lock."""
        while self.returned:
            part = self.returned.popleft()
            part.payer.pay(-part.nbytes)
            if part.memory is not None:
                part.payer.mapped -= 1
                known = self.memories[part.memory]
                known.uses -= 1
                if not known.uses:
                    del self.memories[part.memory]
                    for each in known.paid:
                        each.payer.pay(-each.nbytes)


class Account:
    """A quota of *limit* bytes, also limited by *within*; *mapped* counts mappings. Thread-safe."""

    def __init__(self, limit: int, whose: str, within: Account | None = None) -> None:
        self._limit, self._whose, self._within = limit, whose, within
        self._used = 0
        self.mapped = 0
        self.book: _Book = _Book() if within is None else within.book

    @property
    def used(self) -> int:
        """Bytes that count now."""
        with self.book.lock:
            self.book.settle()
            return self._used

    def memory(self, fd: int, end: int) -> Charge:
        """Charges the bytes up to *end* of the memory behind *fd*, present or future.

        The first account that maps the memory pays in full. Raises `ResourceExhaustedTransient` if
        over quota. Other descriptors are free.
        """
        try:
            status = os.fstat(fd)
            # The memory is mapped later; an unsealed file may grow until then.
            nbytes = max(0, end if may_grow(fd) else min(end, size_of(fd)))
        except (OSError, OverflowError):
            return NOTHING
        key = status.st_dev, status.st_ino
        book = self.book
        with book.lock:
            book.settle()
            known = book.memories.get(key) or _Memory()
            more = max(0, nbytes - known.nbytes)
            tables = nbytes // PAGE_TABLE_SHARE if known.uses else 0
            if self.mapped >= MAX_MAPPED:
                why = f"{self._whose} to a driver's process may map {MAX_MAPPED} memories"
                raise ResourceExhaustedTransient(why)
            self.check(more + tables)
            self.pay(more + tables)
            self.mapped += 1
            if more:
                known.nbytes += more
                known.paid.append(_Part(self, more, None))
            known.uses += 1
            book.memories[key] = known
            return Charge(book.returned, _Part(self, tables, key))

    def charge(self, memory: Memory) -> Charge:
        """As `memory`, for the handle of a request; one without a descriptor counts nothing."""
        fd = descriptor_in(memory)
        if fd is None:
            return NOTHING
        window = memory.handle
        offset = window.offset if isinstance(window, MappedFd) else 0
        return self.memory(fd, max(0, offset) + max(0, memory.size))

    def own(self, nbytes: int) -> Charge:
        """Charges bytes of the host's memory. Raises `ResourceExhaustedTransient` if over quota."""
        book = self.book
        with book.lock:
            book.settle()
            self.check(nbytes)
            self.pay(nbytes)
            return Charge(book.returned, _Part(self, nbytes, None))

    def pay(self, nbytes: int) -> None:
        """Adds bytes here and to the enclosing accounts. The caller holds the book's lock."""
        self._used += nbytes
        if self._within is not None:
            self._within.pay(nbytes)

    def check(self, nbytes: int) -> None:
        """Raises `ResourceExhaustedTransient` if over quota. The caller holds the book's lock."""
        if nbytes and self._used + nbytes > self._limit:
            raise ResourceExhaustedTransient(
                f"{nbytes} bytes more than the {self._used} that {self._whose} to a driver's "
                f"process holds exceed the limit of {self._limit}, its knob lent_limit_mib"
            )
        if self._within is not None:
            self._within.check(nbytes)


class Accounts:
    """The accounts of a host.

    A connection may use `lent_limit_mib` or half of the memory. The same limit holds for all
    connections of one user of a *service*. All connections together may use half as much again.
    """

    def __init__(self, *, service: bool = False) -> None:
        self._limit = knobs.lent_limit_mib() * MIB or min(available_memory(), _address_space()) // 2
        self._service = service
        self._users: dict[int, Account] = {}
        self.total = Account(self._limit * 3 // 2, "all connections")

    def connection(self, user: int) -> Account:
        """The account of a new connection."""
        within = self.total
        if self._service:
            # Must be a single step: the threads that greet clients run in parallel.
            made = Account(self._limit, "the connections of one user", within)
            within = self._users.setdefault(user, made)
        return Account(self._limit, "one connection", within)


def _address_space() -> int:
    if sys.platform == "win32":
        return sys.maxsize
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


class Lease:
    """Descriptors that arrived with one call.

    They are closed after the call, or, if *kept*, with the object that the call made. They stay
    open while a run uses them, since the system reuses numbers of closed descriptors. Their memory
    is charged to *account*.
    """

    def __init__(
        self, close: Callable[[], None] = lambda: None, account: Account | None = None
    ) -> None:
        self.kept = False
        self.message_bytes = 0
        self.account = account
        self._charges: list[Charge] = []
        self._close_all = close
        self._users, self._over = 0, False
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes it once, now or when the last run that uses it has ended."""
        with self._lock:
            first, self._over = not self._over, True
            if not first or self._users:
                return
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it, unless an object that the call made has *kept* it."""
        if not self.kept:
            self.close()

    def charge(self, memory: Memory) -> Charge:
        """Charges *memory* alone. Raises `ResourceExhaustedTransient` if over quota."""
        return NOTHING if self.account is None else self.account.charge(memory)

    def of_own(self, nbytes: int) -> Lease:
        """Another lease, which charges the host's own bytes in the same way."""
        made = Lease()
        if self.account is not None:
            made._charges.append(self.account.own(nbytes))
        return made

    def count(self, memory: Memory) -> None:
        """Charges *memory*, which the call has mapped."""
        self._charges.append(self.charge(memory))

    def _close(self) -> None:
        try:
            self._close_all()
        finally:
            for charge in self._charges:
                charge.release()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Keeps the lease open during the block. Raises `InvalidArgument` if it is closed."""
        with self._lock:
            if self._over:
                raise InvalidArgument("a reusable execution was used after it was closed")
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                last = self._over and not self._users
            if last:
                self._close()


MAX_PREPARED: Final = 1024
"""Prepared models that one client may have at a time on one device."""

MOST_THREADS: Final = os.cpu_count() or 1
"""Most threads for one client's model: the number of processors."""


def threads_of_all(processors: int) -> int:
    """Half of the tasks that Linux allows by default: 1024 a processor, 32,768 at least.

    So 512 models may use every processor, however many there are (`kernel/pid.c`).
    """
    return 512 * max(32, processors)


MAX_THREADS: Final = threads_of_all(MOST_THREADS)
"""Most threads for all models on one device: engines keep some for each model."""

BYTES_OF_FORM: Final = 16
"""Bytes of memory that one byte of a model's message becomes, rounded up."""


class Preparations:
    """The prepared models of one client on one device. Thread-safe."""

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
        """Reserves room for a prepared model of *nbytes* without its constants.

        Returns a function that frees the room. Raises `ResourceExhaustedTransient` if over the
        client's or the *account*'s quota.
        """
        threads = MOST_THREADS if num_threads is None else max(1, num_threads)
        with ExitStack() as undone:
            self._count_model(1, threads)
            undone.callback(self._count_model, -1, -threads)
            for pool, length in ({} if model is None else constants_read(model)).items():
                if (charge := constant_charges.get(pool)) is not None:
                    charge.hold()
                    undone.callback(charge.drop)
                nbytes += self._count_read(pool, length)
                undone.callback(self._uncount_read, weakref.ref(pool), length)
            if account is not None:
                undone.callback(account.own(nbytes).release)
            return undone.pop_all().close

    def _count_model(self, models: int, threads: int) -> None:
        with self._lock:
            if models > 0 and self._count >= MAX_PREPARED:
                raise ResourceExhaustedTransient(
                    f"a client may have {MAX_PREPARED} prepared models at a time on one device"
                )
            if models > 0 and self._threads + threads > MAX_THREADS:
                raise ResourceExhaustedTransient(
                    f"a client's models may use {MAX_THREADS} threads at a time on one device"
                )
            self._count += models
            self._threads += threads

    def _count_read(self, pool: ConstantPool, length: int) -> int:
        """Counts *length* more bytes as read from *pool*. Returns those beyond its size."""
        with self._lock:
            before = self._read.get(pool, 0)
            self._read[pool] = before + length
        return max(0, before + length - max(before, len(pool)))

    def _uncount_read(self, known: weakref.ref[ConstantPool], length: int) -> None:
        if (pool := known()) is not None:
            with self._lock:
                self._read[pool] -= length


def constants_read(model: Model) -> dict[ConstantPool, int]:
    """Bytes of the constants of *model* by pool; bytes that several operands name count once."""
    operands = chain.from_iterable(graph.operands for graph in model.subgraphs)
    items: Iterable[Operand | Variable] = chain(model.variables, operands)
    places = {item.location for item in items if item.location is not None}
    found: dict[ConstantPool, int] = {}
    for place in places:
        pool = model.pools[place.pool]
        found[pool] = found.get(pool, 0) + place.length
    return found
