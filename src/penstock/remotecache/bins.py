"""The hash bins of a publisher: its entries, divided among lists by a hash of their names.

A machine reads the one bin that an entry would be in. The bins are those of TUF's succinct roles
below the publisher's role, which lists no entry itself. A bin is made for its first entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from securesystemslib.signer import SSlibKey
from tuf.api.metadata import Delegations, SuccinctRoles, TargetFile, Targets

from penstock.remotecache import roles

if TYPE_CHECKING:
    from penstock.remotecache.verification import Metadatas

BITS: Final = 6
"""The logarithm of the number of bins of a publisher."""


def succinct(publisher: str, keyid: str = "") -> SuccinctRoles:
    """The bins of *publisher*, signed with the key *keyid*."""
    return SuccinctRoles([keyid] if keyid else [], 1, BITS, f"{publisher}.bin")


@lru_cache(maxsize=roles.MOST_PUBLISHERS)
def names(publisher: str) -> frozenset[str]:
    """The names of all bins that *publisher* may have."""
    return frozenset(succinct(publisher).get_roles())


def bin_of(publisher: str, path: str) -> str:
    """The name of the bin of *publisher* that lists the entry at *path*."""
    return succinct(publisher).get_role_for_target(path)


class Lists:
    """The bins of *publisher* as its present key signed them, whatever their dates. Each is read
    once.
    """

    def __init__(self, metadata: Metadatas, publisher: str) -> None:
        self._metadata, self._publisher = metadata, publisher
        self._role: Targets | None = None
        if metadata.has_list(publisher):
            self._role = metadata.signed(publisher, metadata.history("targets", Targets))
        self._bins: dict[str, Targets] = {}

    def bin(self, name: str) -> Targets:
        """The bin *name*; an empty one if there is none, or none that the present key signed.

        Raises as `Metadatas.signed`.
        """
        if (found := self._bins.get(name)) is None:
            if self._role is not None and name in self._metadata.bins_of(self._publisher):
                found = self._metadata.signed(name, self._role)
            self._bins[name] = found = found or Targets()
        return found

    def all(self) -> dict[str, Targets]:
        """Every bin that there is, by name. Raises as `Metadatas.signed`."""
        for name in self._metadata.bins_of(self._publisher):
            self.bin(name)
        return dict(sorted(self._bins.items()))

    def entries(self) -> Iterator[TargetFile]:
        """Every entry of the publisher. Raises as `Metadatas.signed`."""
        for one in self.all().values():
            yield from one.targets.values()


class OwnLists(Lists):
    """The bins of the publisher with the public *key*, which it changes."""

    def __init__(self, metadata: Metadatas, publisher: str, key: SSlibKey) -> None:
        super().__init__(metadata, publisher)
        self._key = key
        self._changed: set[str] = set()

    def get(self, path: str) -> TargetFile | None:
        """The entry at *path*. Raises as `Metadatas.signed`."""
        return self.bin(bin_of(self._publisher, path)).targets.get(path)

    def put(self, target: TargetFile) -> None:
        """Lists *target* in place of what was listed at its path. Raises as `Metadatas.signed`."""
        name = bin_of(self._publisher, target.path)
        self.bin(name).targets[target.path] = target
        self._changed.add(name)

    def remove(self, target: TargetFile) -> None:
        """Lists *target* no longer."""
        name = bin_of(self._publisher, target.path)
        del self.bin(name).targets[target.path]
        self._changed.add(name)

    def changed(self, due: datetime) -> dict[str, Targets] | None:
        """The lists to sign, by role; None if nothing was changed.

        The publisher's role is signed together with all bins, so none of them expires before it:
        that is done if it expires before *due*, or was signed with another key.
        """
        if not self._changed:
            return None
        role = self._role
        if role is None or role.delegations != self._delegations() or role.expires < due:
            return self.whole()
        return {name: self._bins[name] for name in sorted(self._changed)}

    def whole(self) -> dict[str, Targets]:
        """The publisher's role and all bins, by role. Raises as `Metadatas.signed`."""
        role = self._role or Targets()
        role.targets, role.delegations = {}, self._delegations()
        return {self._publisher: role, **self.all()}

    def _delegations(self) -> Delegations:
        keyid = self._key.keyid
        return Delegations({keyid: self._key}, succinct_roles=succinct(self._publisher, keyid))
