"""What holds the key of this process's seals: the process itself, unless another does it for it."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from penstock.errors import Unreadable
from penstock.sealed.header import MAGIC, Header, is_sealed
from penstock.sealed.keys import KeyStore
from penstock.sealed.registry import Owner, Registry


class Signer(Protocol):
    """Seals headers with the user's key, and tells which were. Thread-safe. Each raises `Unreadable` where there can be no key."""

    def sign(self, header: Header) -> bytes:
        """The 256 bytes of *header*, sealed with the key of now."""
        ...

    def is_sealed(self, content: bytes) -> bool:
        """Whether the user's key sealed these 256 bytes, even one that another process stored meanwhile."""
        ...


class KeySigner:
    """A `Signer` with the key of *keys*."""

    def __init__(self, keys: KeyStore) -> None:
        self._keys = keys

    def sign(self, header: Header) -> bytes:
        return header.pack(self._keys.key())

    def is_sealed(self, content: bytes) -> bool:
        if is_sealed(content, self._keys.key()):
            return True
        if content.startswith(MAGIC):
            with suppress(Unreadable):
                return is_sealed(content, self._keys.refresh())
        return False


class Keeper(Protocol):
    """Another process that holds the key and the registries: this one has neither."""

    @property
    def origin(self) -> str:
        """Whom it seals for, which follows from what it was started for (`penstock.sealed.origin`)."""
        ...

    def trust(self, owner: Owner) -> tuple[Registry, Signer]:
        """The registry of *owner*, and what seals for it: each call of them raises `Unreadable` for an owner of another
        origin, and where the other process does not answer.
        """
        ...


_keepers: list[Keeper] = []


def kept_by(keeper: Keeper) -> None:
    """From now on *keeper* holds the key for every seal of this process that was given none."""
    _keepers[:] = [keeper]


def keeper() -> Keeper | None:
    """The process that holds the key for this one; None where this one does."""
    return _keepers[0] if _keepers else None
