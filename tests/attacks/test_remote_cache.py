"""A store that somebody else can write: nothing is accepted that a trusted publisher did not sign,
in its newest version.
"""

from __future__ import annotations

import itertools
import os
import random
from copy import deepcopy
from datetime import timedelta
from pathlib import Path

import pytest
from tuf.api.metadata import Metadata, Root, Snapshot, Targets

from penstock.errors import CacheError, Expired, NotTrusted, RolledBack, SealBroken, WrongLength
from penstock.remotecache import publishing, roles
from penstock.remotecache.administration import Administration
from penstock.remotecache.bins import Lists, OwnLists
from penstock.remotecache.publishing import Publisher, Validity, commit
from penstock.remotecache.verification import Metadatas
from tests.support_store_attacks import REFUSED, Files, bin_with, flipped, outcome
from tests.support_stores import Fleet, parcel, signer

ONE, TWO = bytes(32), bytes(range(32))
ROLES = ["timestamp", "snapshot", "targets", "ci", bin_with(ONE)]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    fleet = Fleet(tmp_path, f"file://{tmp_path}/store")
    fleet.publisher().publish({ONE: parcel("one").pack(), TWO: parcel("two").pack()})
    return fleet


@pytest.fixture
def files(tmp_path: Path, fleet: Fleet) -> Files:
    return Files(tmp_path / "store")


def entry_of(files: Files, word: str) -> str:
    (name,) = [n for n in files.names(roles.ENTRIES) if files.read(n) == parcel(word).pack()]
    return name


def test_every_altered_bit_of_an_entry_is_refused(fleet: Fleet, files: Files) -> None:
    machine, name = fleet.machine(), entry_of(files, "one")
    listed = machine.look_up(ONE).listed
    content, refused = files.read(name), 0
    for altered in flipped(content):
        files.write(name, altered)
        with pytest.raises(SealBroken):
            machine.fetch(listed)
        refused += 1
    assert refused == 8 * len(content)


def test_every_other_length_of_an_entry_is_refused(fleet: Fleet, files: Files) -> None:
    machine, name = fleet.machine(), entry_of(files, "one")
    listed = machine.look_up(ONE).listed
    content = files.read(name)
    for size in range(len(content) + 64):
        if size != len(content):
            files.write(name, (content + bytes(64))[:size])
            with pytest.raises((SealBroken, WrongLength)):
                machine.fetch(listed)
    files.write(name, content)
    assert machine.fetch(listed) == parcel("one")


@pytest.mark.parametrize("role", ROLES)
def test_no_altered_bit_of_metadata_changes_what_a_machine_gets(
    role: str, fleet: Fleet, files: Files
) -> None:
    name = files.metadata(role)
    content = files.read(name)
    for altered in flipped(content, random.Random(role), 12):
        files.write(name, altered)
        # The signatures of a timestamp may be written in another case: it says the same then.
        assert outcome(fleet.machine(), ONE) in {REFUSED, "one"}, altered
        files.write(name, content)
    assert outcome(fleet.machine(), ONE) == "one"


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("content", [b"", b"null", b"[" * 200_000, b"\xff\xfe", b"{}"])
def test_nonsense_in_the_place_of_metadata_is_refused(
    role: str, content: bytes, fleet: Fleet, files: Files
) -> None:
    files.write(files.metadata(role), content)
    assert outcome(fleet.machine(), ONE) == REFUSED


def test_swapped_entries_are_refused(fleet: Fleet, files: Files) -> None:
    one, two = entry_of(files, "one"), entry_of(files, "two")
    first, second = files.read(one), files.read(two)
    files.write(one, second)
    files.write(two, first)
    assert outcome(fleet.machine(), ONE) == outcome(fleet.machine(), TWO) == REFUSED


def test_swapped_metadata_is_refused(fleet: Fleet, files: Files) -> None:
    fleet.publish(ONE, "other", name="dev")
    names = [files.metadata(role) for role in (*ROLES, "dev", bin_with(ONE, "dev"))]
    contents = {name: files.read(name) for name in names}
    for one, two in itertools.permutations(names, 2):
        files.write(one, contents[two])
        assert outcome(fleet.machine(), ONE) in {REFUSED, "one", "other"}
        if not any(one.split(".")[1] == publisher for publisher in ("ci", "dev")):
            assert outcome(fleet.machine(), ONE) == REFUSED, (one, two)
        files.write(one, contents[one])


def test_a_store_put_back_is_refused_by_who_has_seen_the_newer_one(
    fleet: Fleet, files: Files, tmp_path: Path
) -> None:
    old = files.copy(tmp_path / "old")
    fleet.publish(ONE, "newer")
    machine = fleet.machine()
    assert outcome(machine, ONE) == "newer"
    files.restore(old)
    with pytest.raises(RolledBack):
        machine.look_up(ONE)


def test_single_objects_put_back_are_refused(fleet: Fleet, files: Files, tmp_path: Path) -> None:
    old = Files(files.copy(tmp_path / "old"))
    fleet.publish(ONE, "newer")
    machine = fleet.machine()
    assert outcome(machine, ONE) == "newer"
    for role in ("timestamp", "snapshot", bin_with(ONE)):
        name = files.metadata(role)
        content = files.read(name)
        files.write(name, old.read(old.metadata(role)))
        got = {outcome(fleet.machine(), ONE), outcome(machine, ONE)}
        assert got <= {REFUSED, "newer"} or role == "timestamp"
        assert outcome(machine, ONE) in {REFUSED, "newer"}
        files.write(name, content)


def test_a_store_that_is_frozen_is_refused_once_it_expires(
    fleet: Fleet, files: Files, tmp_path: Path
) -> None:
    """The attacker keeps the last state before a revocation, until its timestamp has expired."""
    commit(fleet.machine(), fleet.keys["ci"], Validity(timestamp=timedelta(seconds=-1)))
    frozen = files.copy(tmp_path / "frozen")
    fleet.publisher("dev").renew()
    fleet.revoke("ci", by="dev")
    files.restore(frozen)
    with pytest.raises(Expired):
        fleet.machine().look_up(ONE)


def test_another_fleets_store_is_refused(fleet: Fleet, files: Files, tmp_path: Path) -> None:
    foreign = Fleet(tmp_path / "foreign", f"file://{tmp_path}/foreign-store")
    foreign.publish(ONE, "foreign")
    files.restore(tmp_path / "foreign-store")
    with pytest.raises(NotTrusted):
        fleet.machine().look_up(ONE)


def test_a_root_of_other_keys_is_refused(fleet: Fleet, files: Files, tmp_path: Path) -> None:
    foreign = Fleet(tmp_path / "foreign", f"file://{tmp_path}/foreign-store")
    draft = foreign.signed(Administration.changed(foreign.machine()))
    files.write(f"{roles.METADATA}/2.root.json", draft.root.to_bytes())
    with pytest.raises(NotTrusted):
        fleet.machine().look_up(ONE)


def test_signatures_of_a_revoked_publisher_are_refused(fleet: Fleet, files: Files) -> None:
    machine = fleet.machine()
    assert outcome(machine, ONE) == "one"
    publisher = fleet.publisher("ci")
    before = files.read(roles.TIMESTAMP)
    fleet.revoke("ci", by="dev")
    # Its own software would refuse; the attacker's does not.
    present = machine.metadata
    with pytest.raises(CacheError):
        publisher.publish({ONE: parcel("evil").pack()})
    commit(publisher._remote, fleet.keys["ci"], fleet.validity, dict, {})
    for one in (machine, fleet.machine()):
        assert outcome(one, ONE) == REFUSED
    assert list(present.publishers()) == ["dev"]
    files.write(roles.TIMESTAMP, before)
    assert outcome(machine, ONE) == outcome(fleet.machine(), ONE) == REFUSED


def test_a_publisher_cannot_list_for_another(fleet: Fleet) -> None:
    """Its list may say so; nobody looks for entries of `dev` there."""
    remote = fleet.machine()

    def change() -> dict[str, Targets]:
        own = OwnLists(remote.metadata, "ci", fleet.keys["ci"].public_key)
        for target in list(own.entries()):
            own.remove(target)
            target.path = target.path.replace("ci/", "dev/")
            own.put(target)
        return own.whole()

    commit(remote, fleet.keys["ci"], fleet.validity, change)
    assert outcome(fleet.machine(), ONE) == REFUSED


@pytest.mark.parametrize("role", ["ci", bin_with(ONE)])
def test_a_publisher_cannot_sign_the_lists_of_another(role: str, fleet: Fleet) -> None:
    """`dev` signs the snapshot, with a list of `ci` in it that names another entry."""
    fleet.publish(TWO, "other", name="dev")
    remote = fleet.machine()

    def change() -> dict[str, Targets]:
        own = OwnLists(remote.metadata, "dev", fleet.keys["dev"].public_key)
        (target,) = own.entries()
        target.path = roles.target_of("ci", ONE.hex())
        delegations = own.whole()["dev"].delegations if role == "ci" else None
        return {role: Targets(targets={target.path: target}, delegations=delegations)}

    commit(remote, fleet.keys["dev"], fleet.validity, change)
    with pytest.raises(NotTrusted):
        fleet.machine().look_up(ONE)


def test_a_list_of_a_bin_that_there_cannot_be_is_never_read(fleet: Fleet) -> None:
    """A publisher signs the snapshot, and can name anything there."""
    remote = fleet.machine()
    remote.metadata.refresh()
    before = remote.metadata.bins_of("ci")
    snapshot = remote.metadata.history("snapshot", Snapshot)
    strange = ["ci.bin-40", "ci.bin-0A", "ci.bin-+1", "ci.bin-000", "ci.bin-", "ci.other"]
    reference = snapshot.meta["ci.json"]
    commit(
        remote,
        fleet.keys["ci"],
        fleet.validity,
        renewed={f"{name}.json": reference for name in strange},
    )
    machine = fleet.machine()
    assert outcome(machine, ONE) == "one"
    assert machine.metadata.bins_of("ci") == before
    assert len(list(Lists(machine.metadata, "ci").entries())) == 2


def test_a_huge_object_is_not_read(fleet: Fleet, files: Files) -> None:
    names = [files.metadata(role) for role in ROLES] + [entry_of(files, "one")]
    for name in names:
        content = files.read(name)
        os.truncate(files.place / name, 1 << 36)
        with pytest.raises(WrongLength):
            fleet.machine().look_up(ONE)
        files.write(name, content)
    assert outcome(fleet.machine(), ONE) == "one"


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_an_object_that_is_no_file_is_refused(kind: str, fleet: Fleet, files: Files) -> None:
    for name in (files.metadata("timestamp"), entry_of(files, "one")):
        path = files.place / name
        content = path.read_bytes()
        path.unlink()
        if kind == "link":
            path.symlink_to("/dev/zero")
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.mkdir()
        assert outcome(fleet.machine(), ONE) == REFUSED
        path.rmdir() if kind == "directory" else path.unlink()
        path.write_bytes(content)
    assert outcome(fleet.machine(), ONE) == "one"


def test_nonsense_in_a_lease_changes_nothing(fleet: Fleet, files: Files) -> None:
    fleet.store.create(f"{roles.LEASES}/{ONE.hex()}", b"\xff" * 5000)
    assert outcome(fleet.machine(), ONE) == "one"
    assert isinstance(fleet.publisher(), Publisher)
    assert files.names(roles.LEASES) == [f"{roles.LEASES}/{ONE.hex()}"]


def successors(fleet: Fleet) -> list[Administration]:
    """Two rotations of root keys in turn, signed as they have to be; neither is in the store."""
    made = []
    remote = fleet.machine()
    remote.metadata.refresh()
    keys, root = fleet.roots, remote.metadata.history("root", Root)
    targets = remote.metadata.history("targets", Targets)
    for version in (2, 3):
        before, root, targets = Metadata(root), deepcopy(root), deepcopy(targets)
        root.version = targets.version = version
        draft = Administration(Metadata(root), Metadata(targets), before)
        after = [signer() for _ in range(3)]
        draft._set_root_keys([key.public_key for key in after], 2)
        for key in (*keys[:2], *after[:2]):
            draft.sign(key)
        made.append(Administration.unpack(draft.pack()))
        keys, root = after, made[-1].root.signed
        targets = made[-1].targets.signed
    return made


def test_a_root_that_skips_a_version_is_not_followed(fleet: Fleet, files: Files) -> None:
    second, third = successors(fleet)
    files.write(f"{roles.METADATA}/3.root.json", third.root.to_bytes())
    machine = fleet.machine()
    assert outcome(machine, ONE) == "one"
    assert machine.metadata.history("root", Root).version == 1
    files.write(f"{roles.METADATA}/2.root.json", third.root.to_bytes())
    assert outcome(fleet.machine(), ONE) == outcome(machine, ONE) == REFUSED
    files.write(f"{roles.METADATA}/2.root.json", second.root.to_bytes())
    # The targets in the store are not signed with the keys of the third root.
    with pytest.raises(NotTrusted, match="targets was signed by 0/2 keys"):
        machine.metadata.refresh()
    assert machine.metadata.history("root", Root).version == 3


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (0, 2), (2, 0)])
def test_a_root_that_too_few_keys_signed_is_refused(
    before: int, after: int, fleet: Fleet, files: Files
) -> None:
    second, _ = successors(fleet)
    present = [key for key in second.root.signatures if key in second._root_keys_before()]
    following = [key for key in second.root.signatures if key in second._root_keys()]
    for key in (*present[before:], *following[after:]):
        del second.root.signatures[key]
    files.write(f"{roles.METADATA}/2.root.json", second.root.to_bytes())
    with pytest.raises(NotTrusted):
        fleet.machine().look_up(ONE)


def test_a_dropped_list_of_a_publisher_that_is_trusted_is_refused(fleet: Fleet) -> None:
    """`dev` signs a snapshot without the lists of `ci`, after another publisher was revoked."""
    machine, later = fleet.machine(), b"l" * 32
    fleet.keys["third"] = signer()
    given = {"third": fleet.keys["third"].public_key}
    fleet.signed(Administration.changed(fleet.machine(), authorize=given)).apply(
        fleet.machine(), fleet.keys["ci"]
    )
    fleet.publish(later, "later", name="third")
    # What a revoked publisher has signed is no history any more.
    fleet.publisher("ci").renew()
    assert (outcome(machine, ONE), outcome(machine, later)) == ("one", "later")
    fleet.revoke("third", by="ci")
    remote = fleet.machine()
    remote.metadata.refresh()
    genuine = publishing._without_revoked

    def dropping(metadata: Metadatas) -> Snapshot:
        snapshot = genuine(metadata)
        snapshot.meta = {"targets.json": snapshot.meta["targets.json"]}
        return snapshot

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publishing, "_without_revoked", dropping)
        commit(remote, fleet.keys["dev"], fleet.validity)
    with pytest.raises(RolledBack, match=r"has an older ci\."):
        machine.look_up(ONE)
