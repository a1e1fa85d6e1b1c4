"""Memory that a host has of its clients, counted and bounded: for each connection, each user, and
all together.

What counts is what a client makes a host map or keep: pools, rings, models, messages. Memory that
is mapped in several places is there once, so that each further mapping counts as what its page
tables take.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from typing import Final, NamedTuple

from penstock import knobs
from penstock.errors import ResourceExhaustedTransient
from penstock.hal import Memory
from penstock.ipc.fd_checks import descriptor_in
from penstock.ipc.linux import may_grow
from penstock.memory.limits import MIB, available_memory
from penstock.memory.mapping import MappedFd, size_of

PAGE_TABLE_SHARE: Final = 512
"""Bytes of memory that one byte of a page table maps: pages of 4096 have entries of 8."""

MAX_MAPPED: Final = 1 << 13
"""Memories that one account may have mapped at a time, each as often as it is: a process has some
65,000 mappings, and each takes a descriptor.
"""

LEAST_COUNTED: Final = 4096
"""Messages of no more bytes are not counted."""


class _Part(NamedTuple):
    """*nbytes* that *payer* has; *memory* is what they are a use of, None for bytes of nobody else."""

    payer: Account
    nbytes: int
    memory: tuple[int, int] | None


class Charge:
    """Bytes that count until `release`."""

    __slots__ = ("_parts", "_returned")

    def __init__(self, returned: deque[_Part], *parts: _Part) -> None:
        self._returned, self._parts = returned, list(parts)

    def release(self) -> None:
        """They count no more; twice is harmless. A finalizer may call it in the middle of anything:
        it waits for no lock.
        """
        while self._parts:
            try:
                self._returned.append(self._parts.pop())
            except IndexError:
                return


NOTHING: Final = Charge(deque())
"""What counts nothing."""


class _Memory:
    """Memory that is mapped at least once: how many bytes, how often, and who pays for them."""

    def __init__(self) -> None:
        self.nbytes = self.uses = 0
        self.paid: list[_Part] = []


class _Book:
    """What all accounts of a host share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.returned: deque[_Part] = deque()
        self.memories: dict[tuple[int, int], _Memory] = {}

    def settle(self) -> None:
        """Gives back what was released; under the lock."""
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
    """What *whose* memory may be: *limit* bytes, and no more than the account *within* has room
    for; *mapped* is how many memories it has mapped. Thread-safe.
    """

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
        """Counts the bytes up to *end* of the memory behind *fd*, as far as it has them or may grow
        to have them: in full for who first maps them, whoever maps them last.

        Raises `ResourceExhaustedTransient` where there is no room for them. What is no memory
        counts nothing.
        """
        try:
            status = os.fstat(fd)
            # It is mapped later, and what is not sealed may have grown by then.
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
                raise ResourceExhaustedTransient(
                    f"{self._whose} to a driver's process may have it map {MAX_MAPPED} memories at a time"
                )
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
        """As `memory`, of what a request names; what has no descriptor counts nothing."""
        fd = descriptor_in(memory)
        if fd is None:
            return NOTHING
        window = memory.handle
        offset = window.offset if isinstance(window, MappedFd) else 0
        return self.memory(fd, max(0, offset) + max(0, memory.size))

    def own(self, nbytes: int) -> Charge:
        """Counts bytes of the host's own memory. Raises `ResourceExhaustedTransient` where there is
        no room for them.
        """
        book = self.book
        with book.lock:
            book.settle()
            self.check(nbytes)
            self.pay(nbytes)
            return Charge(book.returned, _Part(self, nbytes, None))

    def pay(self, nbytes: int) -> None:
        """Adds bytes here and to the accounts around; under the book's lock."""
        self._used += nbytes
        if self._within is not None:
            self._within.pay(nbytes)

    def check(self, nbytes: int) -> None:
        """Raises `ResourceExhaustedTransient` where there is no room for them here or around; under
        the book's lock.
        """
        if nbytes and self._used + nbytes > self._limit:
            raise ResourceExhaustedTransient(
                f"{nbytes} bytes more than the {self._used} that {self._whose} to a driver's process may have "
                f"it hold exceed the limit of {self._limit}: the knob lent_limit_mib of that process"
            )
        if self._within is not None:
            self._within.check(nbytes)


class Accounts:
    """Those of one host. A connection may have the bytes of the knob `lent_limit_mib`, else half of
    the memory; of a *service* the connections of one user together as many; and all connections
    half as much again.
    """

    def __init__(self, *, service: bool = False) -> None:
        self._limit = knobs.lent_limit_mib() * MIB or min(available_memory(), _address_space()) // 2
        self._service = service
        self._users: dict[int, Account] = {}
        self.total = Account(self._limit * 3 // 2, "all connections")

    def connection(self, user: int) -> Account:
        """That of a new connection."""
        within = self.total
        if self._service:
            # No step of two: the threads that greet run side by side.
            made = Account(self._limit, "the connections of one user", within)
            within = self._users.setdefault(user, made)
        return Account(self._limit, "one connection", within)


def _address_space() -> int:
    if sys.platform == "win32":
        return sys.maxsize
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
