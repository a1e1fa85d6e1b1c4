"""Who may publish: drafts with thresholds, rotation and revocation."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import InputError, NoEntry, NotTrusted, StoreUnavailable
from penstock.remotecache.administration import Administration
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
