"""Who may publish: drafts with thresholds, rotation and revocation."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from tuf.api.metadata import Root, Snapshot

from penstock.errors import InputError, NoEntry, NotTrusted, StoreUnavailable
from penstock.remotecache.administration import Administration
from penstock.remotecache.pruning import prune
from tests.support_store_attacks import bin_with
from tests.support_stores import Fleet, new_url, parcel, signer

TOKEN = bytes(range(32))


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def test_a_draft_needs_the_threshold_of_signatures(fleet: Fleet) -> None:
    draft = Administration.changed(fleet.machine(), revoke=["dev"])
    draft.sign(fleet.roots[0])
    draft.sign(fleet.roots[0])
    with pytest.raises(NotTrusted, match="not signed by enough keys"):
        draft.apply(fleet.machine(), fleet.keys["ci"])
    Administration.unpack(draft.pack()).sign(fleet.roots[2])
    with pytest.raises(NotTrusted, match="not signed by enough keys"):
        draft.apply(fleet.machine(), fleet.keys["ci"])
    packed = Administration.unpack(draft.pack())
    packed.sign(fleet.roots[2])
    packed.apply(fleet.machine(), fleet.keys["ci"])
    assert list(fleet.publisher("ci")._remote.metadata.publishers()) == ["ci"]


def test_a_key_that_is_no_root_key_cannot_sign(fleet: Fleet) -> None:
    draft = Administration.changed(fleet.machine(), revoke=["dev"])
    with pytest.raises(InputError, match="not one of the root keys"):
        draft.sign(fleet.keys["ci"])


def test_entries_of_a_revoked_publisher_are_not_found(fleet: Fleet) -> None:
    fleet.publish(TOKEN, name="ci")
    machine = fleet.machine()
    assert machine.look_up(TOKEN).listed.publisher == "ci"
    fleet.revoke("ci", by="dev")
    for one in (machine, fleet.machine()):
        with pytest.raises(NoEntry):
            one.look_up(TOKEN)


def test_a_revoked_publisher_cannot_publish(fleet: Fleet) -> None:
    publisher = fleet.publisher("ci")
    fleet.revoke("ci", by="dev")
    with pytest.raises(NotTrusted):
        publisher.publish({TOKEN: parcel().pack()})
    with pytest.raises(NotTrusted):
        fleet.publisher("ci")


def test_other_publishers_go_on_after_a_revocation(fleet: Fleet) -> None:
    fleet.publish(TOKEN, name="dev")
    fleet.revoke("ci", by="dev")
    fleet.publish(bytes(32), name="dev")
    machine = fleet.machine()
    assert machine.look_up(TOKEN).parcel == machine.look_up(bytes(32)).parcel == parcel()


def test_a_publisher_gets_another_key(fleet: Fleet) -> None:
    fleet.publish(TOKEN, name="ci")
    old, new = fleet.keys["ci"], signer()
    draft = Administration.changed(fleet.machine(), authorize={"ci": new.public_key})
    fleet.signed(draft).apply(fleet.machine(), new)
    fleet.keys["ci"] = new
    machine = fleet.machine()
    with pytest.raises(NotTrusted):
        machine.look_up(TOKEN)
    fleet.publish(TOKEN, "again", name="ci")
    assert machine.look_up(TOKEN).parcel == parcel("again")
    fleet.keys["ci"] = old
    with pytest.raises(NotTrusted):
        fleet.publisher("ci")


def test_a_draft_of_an_older_version_is_refused(fleet: Fleet) -> None:
    stale = fleet.signed(Administration.changed(fleet.machine(), revoke=["dev"]))
    renewed = fleet.signed(Administration.changed(fleet.machine()))
    renewed.apply(fleet.machine(), fleet.keys["ci"])
    with pytest.raises(InputError, match="the draft is root version 2, and the store has 2"):
        stale.apply(fleet.machine(), fleet.keys["ci"])


def test_a_store_is_made_once(fleet: Fleet) -> None:
    draft = Administration.new([fleet.roots[0].public_key], 1, {"ci": fleet.keys["ci"].public_key})
    draft.sign(fleet.roots[0])
    with pytest.raises(StoreUnavailable, match=r"has a metadata/1.root.json already"):
        draft.create(fleet.store, fleet.keys["ci"])


def test_a_draft_is_applied_by_a_publisher_in_it(fleet: Fleet) -> None:
    draft = fleet.signed(Administration.changed(fleet.machine(), revoke=["dev"]))
    with pytest.raises(NotTrusted, match="must be that of a publisher in it"):
        draft.apply(fleet.machine(), fleet.keys["dev"])


def test_a_draft_says_what_it_changes(fleet: Fleet) -> None:
    lines = Administration.changed(fleet.machine(), revoke=["dev"]).show()
    assert lines[0].startswith("root version 2, valid until ")
    assert [line for line in lines if line.startswith("publisher")] == [
        f"publisher ci: key {fleet.keys['ci'].public_key.keyid[:12]}"
    ]
    assert sum("2 must sign" in line for line in lines) == 3


@pytest.mark.parametrize("threshold", [0, 2])
def test_a_threshold_must_be_possible(threshold: int) -> None:
    key = signer().public_key
    with pytest.raises(InputError, match="the threshold of 1 root keys"):
        Administration.new([key], threshold, {"ci": key})


@pytest.mark.parametrize("name", ["root", "targets", "A", "", "a/b", "x" * 64])
def test_a_publisher_has_a_plain_name(name: str) -> None:
    key = signer().public_key
    with pytest.raises(InputError, match="a publisher's name"):
        Administration.new([key], 1, {name: key})


def test_a_store_has_a_publisher() -> None:
    with pytest.raises(InputError, match="1 to 16 publishers, not 0"):
        Administration.new([signer().public_key], 1, {})


@pytest.mark.parametrize("content", [b"", b"{}", b'{"root": "{}", "targets": "{}"}', b"\xff"])
def test_bytes_that_are_no_draft_are_refused(content: bytes) -> None:
    with pytest.raises(InputError, match="no draft of a store"):
        Administration.unpack(content)


def test_the_first_root_is_trusted_beyond_its_own_versions(fleet: Fleet) -> None:
    """A machine that was off for three rotations follows them from the root that it has."""
    machine = fleet.machine()
    for _ in range(3):
        draft = fleet.signed(Administration.changed(fleet.machine()))
        draft.apply(fleet.machine(), fleet.keys["ci"])
    fleet.publish(TOKEN)
    assert machine.look_up(TOKEN).parcel == parcel()
    assert new_url() != fleet.url


def rotated(fleet: Fleet, count: int = 3, threshold: int = 2) -> Administration:
    """A draft with other root keys, which are those of *fleet* from then on, and no signature."""
    fleet.roots = [signer() for _ in range(count)]
    keys = [root.public_key for root in fleet.roots]
    return Administration.changed(fleet.machine(), root_keys=keys, threshold=threshold)


def rotate(fleet: Fleet) -> None:
    old = fleet.roots[:2]
    draft = rotated(fleet)
    for key in (*old, *fleet.roots[:2]):
        draft.sign(key)
    draft.apply(fleet.machine(), fleet.keys["ci"])


def test_root_keys_are_replaced_by_the_old_ones_and_the_new_ones(fleet: Fleet) -> None:
    fleet.publish(TOKEN)
    machine, old = fleet.machine(), fleet.roots
    machine.look_up(TOKEN)
    rotate(fleet)
    for one in (machine, fleet.machine()):
        assert one.look_up(TOKEN).parcel == parcel()
    fleet.revoke("dev", by="ci")
    machine.metadata.refresh()
    assert list(machine.metadata.publishers()) == ["ci"]
    draft = Administration.changed(fleet.machine())
    with pytest.raises(InputError, match="not one of the root keys"):
        draft.sign(old[0])


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (0, 3), (3, 0)])
def test_a_rotation_needs_both_thresholds(before: int, after: int, fleet: Fleet) -> None:
    old = fleet.roots
    draft = Administration.unpack(rotated(fleet).pack())
    for key in (*old[:before], *fleet.roots[:after]):
        draft.sign(key)
    with pytest.raises(NotTrusted, match="not signed by enough keys"):
        draft.apply(fleet.machine(), fleet.keys["ci"])


def test_a_machine_follows_rotations_one_by_one(fleet: Fleet) -> None:
    """It was off, and has the first root only; the keys of that have signed nothing since."""
    machine = fleet.machine()
    for _ in range(3):
        rotate(fleet)
    fleet.publish(TOKEN)
    assert machine.look_up(TOKEN).parcel == parcel()
    assert machine.metadata.history("root", Root).version == 4


def test_a_draft_of_a_rotation_says_which_keys_come_and_leave(fleet: Fleet) -> None:
    kept, *leaving = fleet.roots
    keys = [kept.public_key, signer().public_key]
    draft = Administration.changed(fleet.machine(), root_keys=keys)
    draft.sign(leaving[0])
    old, new = (f"root key {key.keyid[:12]}" for key in keys)
    gone = [f"root key {key.public_key.keyid[:12]} of the present root" for key in leaving]
    assert [line for line in draft.show() if line.startswith("root key")] == [
        f"{old} (1 must sign)",
        f"{new} (1 must sign), new",
        f"{old} of the present root (2 must sign)",
        f"{gone[0]} (2 must sign), leaves, signed",
        f"{gone[1]} (2 must sign), leaves",
    ]


@pytest.mark.parametrize("threshold", [0, 4])
def test_a_threshold_of_a_rotation_must_be_possible(threshold: int, fleet: Fleet) -> None:
    with pytest.raises(InputError, match="the threshold of 3 root keys is 1 to 3"):
        rotated(fleet, threshold=threshold)


def test_lists_of_a_revoked_publisher_leave_the_snapshot(fleet: Fleet) -> None:
    """Machines that have seen them accept that, and go on to refuse older lists of others."""
    fleet.publish(TOKEN, name="ci")
    fleet.publish(bytes(32), name="dev")
    machine = fleet.machine()
    machine.look_up(TOKEN)
    fleet.revoke("ci", by="dev")
    for one in (machine, fleet.machine()):
        assert one.look_up(bytes(32)).listed.publisher == "dev"
        lists = {n for n in one.metadata.history("snapshot", Snapshot).meta if n != "targets.json"}
        assert lists == {"dev.json", f"{bin_with(bytes(32), 'dev')}.json"}


def test_a_name_that_was_revoked_can_be_given_to_another_key(fleet: Fleet) -> None:
    for number in range(5):
        fleet.publish(TOKEN, f"number {number}", name="ci")
    machine = fleet.machine()
    machine.look_up(TOKEN)
    fleet.revoke("ci", by="dev")
    prune(fleet.machine(), fleet.publisher("dev"), timedelta(0))
    fleet.keys["ci"] = signer()
    given = {"ci": fleet.keys["ci"].public_key}
    draft = Administration.changed(fleet.machine(), authorize=given)
    fleet.signed(draft).apply(fleet.machine(), fleet.keys["dev"])
    fleet.publish(TOKEN, "again", name="ci")
    for one in (machine, fleet.machine()):
        assert one.look_up(TOKEN).parcel == parcel("again")


def test_entries_of_a_replaced_key_are_missing_after_the_next_publication(fleet: Fleet) -> None:
    """In the bins too that the next publication has no entry for."""
    other = next(t for t in map(bytes, zip(range(256))) if bin_with(t) != bin_with(TOKEN))
    fleet.publish(other, name="ci")
    fleet.publish(TOKEN, name="ci")
    fleet.keys["ci"] = signer()
    given = {"ci": fleet.keys["ci"].public_key}
    draft = Administration.changed(fleet.machine(), authorize=given)
    fleet.signed(draft).apply(fleet.machine(), fleet.keys["ci"])
    fleet.publish(TOKEN, "again", name="ci")
    machine = fleet.machine()
    assert machine.look_up(TOKEN).parcel == parcel("again")
    with pytest.raises(NoEntry):
        machine.look_up(other)
