"""Shared stores for tests: one with its keys and publishers, and machines that read it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from securesystemslib.signer import CryptoSigner

from penstock import knobs
from penstock.remotecache.administration import Administration
from penstock.remotecache.fetching import Remote
from penstock.remotecache.parcel import Parcel
from penstock.remotecache.publishing import VALIDITY, Publisher, Validity
from penstock.remotecache.stores import ObjectStore, open_store

_count: Final = itertools.count()


def new_url() -> str:
    """The URL of an empty store in this process's memory."""
    return f"memory://{os.getpid()}-{next(_count)}"


def signer() -> CryptoSigner:
    return CryptoSigner.generate_ed25519()


def parcel(word: str = "compiled", **changes: Any) -> Parcel:
    given: dict[str, Any] = {
        "device": "lab",
        "version": "1",
        "ingredients": {"device": "lab"},
        **changes,
    }
    return Parcel(binding="ab" * 32, model=(word.encode(), b""), data=(b"weights",), **given)


class Fleet:
    """A store at *url*, three root keys of which two must sign, and the publishers *names*."""

    def __init__(
        self,
        place: Path,
        url: str = "",
        names: Sequence[str] = ("ci", "dev"),
        validity: Validity = VALIDITY,
    ) -> None:
        self.url, self.place, self.validity = url or new_url(), place, validity
        self.store: ObjectStore = open_store(self.url)
        self.roots = [signer() for _ in range(3)]
        self.keys = {name: signer() for name in names}
        publishers = {name: key.public_key for name, key in self.keys.items()}
        draft = Administration.new([r.public_key for r in self.roots], 2, publishers, validity)
        self.root = self.signed(draft).create(self.store, self.keys[names[0]], validity)
        self._machines = itertools.count()

    def signed(self, draft: Administration) -> Administration:
        for root in self.roots[:2]:
            draft.sign(root)
        return draft

    def machine(self, store: ObjectStore | None = None) -> Remote:
        """A machine without history."""
        place = self.place / f"machine{next(self._machines)}"
        place.mkdir(parents=True)
        return Remote(store or self.store, self.root, str(place))

    def publisher(self, name: str = "ci", validity: Validity | None = None) -> Publisher:
        return Publisher(self.machine(), self.keys[name], validity or self.validity)

    def publish(self, token: bytes, word: str = "compiled", name: str = "ci") -> None:
        self.publisher(name).publish({token: parcel(word).pack()})

    def revoke(self, name: str, by: str) -> None:
        draft = Administration.changed(self.machine(), revoke=[name], validity=self.validity)
        self.signed(draft).apply(self.machine(), self.keys[by], self.validity)

    @contextmanager
    def on(self, machine: str, key: str = "") -> Iterator[None]:
        """Settings of a *machine* of the fleet, which publishes with the key of *key*."""
        place = self.place / machine
        place.mkdir(parents=True, exist_ok=True)
        (place / "root.json").write_bytes(self.root)
        if key:
            (place / "key.pem").write_bytes(self.keys[key].private_bytes)
        with knobs.override(
            state_dir=str(place / "state"),
            cache_dir=str(place / "cache"),
            key_store="file",
            store_root=str(place / "root.json"),
            store_key=str(place / "key.pem") if key else "",
        ):
            yield
