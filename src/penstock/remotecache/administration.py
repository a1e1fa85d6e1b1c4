"""Who may publish to a store: drafts of the root and the list of publishers, signed offline.

A draft is made from the store, signed by each holder of a root key on a machine of his own, and
applied by somebody who can write to the store. It needs no secret to be made or applied, beside the
key that signs the snapshot and the timestamp.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec
from securesystemslib.signer import CryptoSigner, SSlibKey
from tuf.api import exceptions
from tuf.api.metadata import (
    DelegatedRole,
    Delegations,
    Metadata,
    Root,
    Snapshot,
    Targets,
    Timestamp,
)
from tuf.api.serialization import DeserializationError

from penstock.errors import InputError, NotTrusted, StoreUnavailable
from penstock.remotecache import roles
from penstock.remotecache.fetching import Remote
from penstock.remotecache.publishing import (
    VALIDITY,
    Validity,
    check_conditional,
    commit,
    reference,
)
from penstock.remotecache.stores import ObjectStore

MOST_DRAFT_BYTES = 1 << 22


class _Packed(msgspec.Struct, frozen=True):
    """A draft as JSON: the metadata of both roles and the present root if any, as text."""

    root: str
    targets: str
    before: str = ""


class Administration:
    """A draft: a version of *root* and of *targets*, with the signatures that they have so far.

    *before* is the root that it follows, for whoever is to sign it. Nothing is believed that a
    draft says of it: a machine follows the roots of the store itself.
    """

    def __init__(
        self,
        root: Metadata[Root],
        targets: Metadata[Targets],
        before: Metadata[Root] | None = None,
    ) -> None:
        self.root, self.targets, self.before = root, targets, before

    @classmethod
    def new(
        cls,
        root_keys: Sequence[SSlibKey],
        threshold: int,
        publishers: Mapping[str, SSlibKey],
        validity: Validity = VALIDITY,
    ) -> Administration:
        """The draft of a new store, in which *threshold* of *root_keys* decide.

        Raises `InputError`.
        """
        expires = datetime.now(UTC) + validity.root
        root = Root(expires=expires, consistent_snapshot=True)
        targets = Targets(expires=expires, delegations=Delegations({}, {}))
        draft = cls(Metadata(root), Metadata(targets))
        draft._set_root_keys(root_keys, threshold)
        draft._authorize(publishers)
        return draft

    @classmethod
    def changed(
        cls,
        remote: Remote,
        *,
        authorize: Mapping[str, SSlibKey] | None = None,
        revoke: Iterable[str] = (),
        root_keys: Sequence[SSlibKey] | None = None,
        threshold: int = 1,
        validity: Validity = VALIDITY,
    ) -> Administration:
        """The draft of the next version of *remote*: other publishers, and later dates.

        Authorising a publisher by a known name replaces its key. From that version on *threshold*
        of *root_keys* decide, unless they are None; the present threshold of the present keys has
        to sign the draft too. Raises `InputError` for a publisher to *revoke* that is not trusted,
        and the errors of `Metadatas.refresh`.
        """
        remote.metadata.refresh()
        before = Metadata(remote.metadata.history("root", Root))
        root = remote.metadata.history("root", Root)
        targets = remote.metadata.history("targets", Targets)
        expires = datetime.now(UTC) + validity.root
        for signed in (root, targets):
            signed.version, signed.expires = signed.version + 1, expires
        draft = cls(Metadata(root), Metadata(targets), before)
        if root_keys is not None:
            draft._set_root_keys(root_keys, threshold)
        for name in revoke:
            draft._revoke(name)
        draft._authorize(authorize or {})
        return draft

    @classmethod
    def unpack(cls, content: bytes) -> Administration:
        """Raises `InputError`."""
        try:
            packed = msgspec.json.decode(content, type=_Packed)
            return cls(
                Metadata[Root].from_bytes(packed.root.encode()),
                Metadata[Targets].from_bytes(packed.targets.encode()),
                Metadata[Root].from_bytes(packed.before.encode()) if packed.before else None,
            )
        except (msgspec.DecodeError, DeserializationError, RecursionError) as error:
            raise InputError(f"this is no draft of a store: {error}") from None

    def pack(self) -> bytes:
        before = "" if self.before is None else self.before.to_bytes().decode()
        return msgspec.json.encode(
            _Packed(self.root.to_bytes().decode(), self.targets.to_bytes().decode(), before)
        )

    def sign(self, signer: CryptoSigner) -> None:
        """Adds the signature of a holder of a root key, of the present root or of the next.

        Raises `InputError` for another key.
        """
        keyid = signer.public_key.keyid
        if keyid not in self._root_keys() | self._root_keys_before():
            raise InputError(f"the key {keyid[:12]} is not one of the root keys")
        self.root.sign(signer, append=True)
        self.targets.sign(signer, append=True)

    def show(self) -> list[str]:
        """What the draft says, a line for each key, for whoever is to sign it."""
        root = self.root.signed
        lines = [f"root version {root.version}, valid until {root.expires:%Y-%m-%d}"]
        own, former = self._root_keys(), self._root_keys_before()
        lines += [
            f"root key {key[:12]} ({root.roles['root'].threshold} must sign)"
            f"{', new' if former and key not in former else ''}{self._signed_by(key)}"
            for key in root.roles["root"].keyids
        ]
        if self.before is not None and own != former:
            present = self.before.signed.roles["root"]
            lines += [
                f"root key {key[:12]} of the present root ({present.threshold} must sign)"
                f"{'' if key in own else ', leaves'}{self._signed_by(key)}"
                for key in present.keyids
            ]
        return lines + [f"publisher {n}: key {key[:12]}" for n, key in sorted(self.keys().items())]

    def _root_keys(self) -> set[str]:
        return set(self.root.signed.roles["root"].keyids)

    def _root_keys_before(self) -> set[str]:
        return set() if self.before is None else set(self.before.signed.roles["root"].keyids)

    def _signed_by(self, key: str) -> str:
        return ", signed" if key in self.root.signatures else ""

    @property
    def is_new(self) -> bool:
        """Whether the draft is that of a new store."""
        return self.root.signed.version == 1

    def keys(self) -> dict[str, str]:
        """The identifier of each publisher's key."""
        found = self.targets.signed.delegations
        listed = {} if found is None or found.roles is None else found.roles
        return {name: role.keyids[0] for name, role in listed.items()}

    def create(
        self, store: ObjectStore, signer: CryptoSigner, validity: Validity = VALIDITY
    ) -> bytes:
        """Makes *store* with this draft; returns the trusted root for machines.

        *signer* is a publisher's key. Raises `NotTrusted` for missing signatures,
        `StoreUnavailable` if the store has metadata already.
        """
        check_conditional(store)
        self._check(self.root.signed)
        expires = datetime.now(UTC) + validity.timestamp
        targets = self.targets.to_bytes()
        snapshot = Metadata(Snapshot(expires=expires))
        snapshot.signed.meta = {"targets.json": reference(1, targets)}
        snapshot.sign(signer)
        timestamp = Metadata(Timestamp(expires=expires))
        timestamp.signed.snapshot_meta = reference(1, snapshot.to_bytes())
        timestamp.sign(signer)
        _verify(self.root.signed, "timestamp", timestamp)
        contents = {
            f"{roles.METADATA}/1.root.json": self.root.to_bytes(),
            f"{roles.METADATA}/1.targets.json": targets,
            f"{roles.METADATA}/1.snapshot.json": snapshot.to_bytes(),
            roles.TIMESTAMP: timestamp.to_bytes(),
        }
        for name, content in contents.items():
            if store.create(name, content) is None:
                raise StoreUnavailable(f"{store.url} has a {name} already")
        return self.root.to_bytes()

    def apply(self, remote: Remote, signer: CryptoSigner, validity: Validity = VALIDITY) -> None:
        """Makes the draft the next version of *remote*. *signer* is a publisher's key in it.

        Raises `NotTrusted` for missing signatures, `InputError` for a draft of another version, and
        the errors of `Metadatas.refresh`.
        """
        check_conditional(remote.store)
        remote.metadata.refresh()
        before = remote.metadata.history("root", Root)
        root, targets = self.root.signed, self.targets.signed
        if root.version != before.version + 1:
            raise InputError(
                f"the draft is root version {root.version}, and the store has {before.version}"
            )
        self._check(before)
        self._check(root)
        if signer.public_key.keyid not in root.roles["timestamp"].keyids:
            raise NotTrusted("the key that applies a draft must be that of a publisher in it")
        content = self.targets.to_bytes()
        listed = f"{roles.METADATA}/{targets.version}.targets.json"
        if remote.store.create(listed, content) is None:
            raise StoreUnavailable(f"{remote.store.url} has a {listed} already")
        renewed = {"targets.json": reference(targets.version, content)}
        # The root comes last: it may revoke the key of the timestamp that is there.
        commit(remote, signer, validity, renewed=renewed)
        name = f"{roles.METADATA}/{root.version}.root.json"
        if remote.store.create(name, self.root.to_bytes()) is None:
            raise StoreUnavailable(f"{remote.store.url} has a {name} already")
        if set(remote.metadata.publishers()) - set(self.keys()):
            # Machines that know the root accept a snapshot without the lists of who was revoked.
            commit(remote, signer, validity)

    def _set_root_keys(self, keys: Sequence[SSlibKey], threshold: int) -> None:
        """Makes *threshold* of *keys* those that decide. Raises `InputError`."""
        count = len({key.keyid for key in keys})
        if not 1 <= threshold <= count:
            raise InputError(f"the threshold of {count} root keys is 1 to {count}, not {threshold}")
        root = self.root.signed
        for role in ("root", "targets"):
            for old in tuple(root.roles[role].keyids):
                root.revoke_key(old, role)
            for key in keys:
                root.add_key(key, role)
            root.roles[role].threshold = threshold

    def _authorize(self, publishers: Mapping[str, SSlibKey]) -> None:
        root, targets = self.root.signed, self.targets.signed
        if targets.delegations is None or targets.delegations.roles is None:
            raise InputError("the store lists its publishers in another way")
        listed = targets.delegations.roles
        for name, key in publishers.items():
            if roles.checked_publisher(name) in listed:
                self._revoke(name)
            listed[name] = DelegatedRole(name, [], 1, False, paths=[f"{name}/*"])
            targets.add_key(key, name)
            for role in ("snapshot", "timestamp"):
                root.add_key(key, role)
        if not 1 <= len(listed) <= roles.MOST_PUBLISHERS:
            raise InputError(
                f"a store has 1 to {roles.MOST_PUBLISHERS} publishers, not {len(listed)}"
            )

    def _revoke(self, name: str) -> None:
        root, targets = self.root.signed, self.targets.signed
        listed = targets.delegations.roles if targets.delegations else None
        if not listed or name not in listed:
            raise InputError(f"{name!r} is not a publisher of the store")
        for key in tuple(listed[name].keyids):
            targets.revoke_key(key, name)
            for role in ("snapshot", "timestamp"):
                root.revoke_key(key, role)
        del listed[name]

    def _check(self, root: Root) -> None:
        """Raises `NotTrusted` unless the keys of *root* have signed the draft."""
        for role, metadata in (("root", self.root), ("targets", self.targets)):
            _verify(root, role, metadata)


def _verify(
    root: Root, role: str, metadata: Metadata[Root] | Metadata[Targets] | Metadata[Timestamp]
) -> None:
    try:
        root.verify_delegate(role, metadata.signed_bytes, metadata.signatures)
    except (exceptions.UnsignedMetadataError, ValueError) as error:
        raise NotTrusted(f"the draft is not signed by enough keys: {error}") from None
