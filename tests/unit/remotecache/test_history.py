"""What a machine believes that has seen a store before, and one that has not (docs/fleet.md)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tuf.api.metadata import Snapshot, Timestamp

from penstock.errors import Expired, NoEntry, RolledBack
from penstock.remotecache.publishing import VALIDITY, Validity
from tests.support_store_attacks import Files, outcome
from tests.support_stores import Fleet, parcel

YEAR = timedelta(days=365)
LASTING = Validity(timestamp=YEAR, list=YEAR, root=YEAR)
BRIEF = Validity(timestamp=timedelta(days=1), list=YEAR, root=YEAR)
OLD, LATER = bytes(32), bytes(range(32))


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    fleet = Fleet(tmp_path, f"file://{tmp_path}/store")
    fleet.publish(OLD, "old")
    return fleet


@pytest.fixture
def files(tmp_path: Path, fleet: Fleet) -> Files:
    return Files(tmp_path / "store")


@pytest.fixture
def after(monkeypatch: pytest.MonkeyPatch) -> Callable[[timedelta], None]:
    """Makes the clock of machines fast."""

    def move(by: timedelta) -> None:
        class Fast(dt.datetime):
            @classmethod
            def now(cls, tz: dt.tzinfo | None = None) -> Any:
                return super().now(tz) + by

        clock = SimpleNamespace(**{**vars(dt), "datetime": Fast})
        monkeypatch.setattr("tuf.ngclient._internal.trusted_metadata_set.datetime", clock)

    return move


def seen(machine: Any) -> tuple[int, int]:
    history = machine.metadata.history
    return history("snapshot", Snapshot).version, history("timestamp", Timestamp).version


def test_a_machine_without_history_believes_an_older_state_until_its_date(
    tmp_path: Path, fleet: Fleet, files: Files, after: Callable[[timedelta], None]
) -> None:
    """Nothing tells it that the state is not the newest, until the timestamp has expired."""
    older = files.copy(tmp_path / "older")
    fleet.publish(LATER, "later")
    fleet.publish(OLD, "replaced")
    files.restore(older)
    assert outcome(fleet.machine(), OLD) == "old"
    with pytest.raises(NoEntry):
        fleet.machine().look_up(LATER)
    after(VALIDITY.timestamp - timedelta(minutes=1))
    assert outcome(fleet.machine(), OLD) == "old"
    after(VALIDITY.timestamp + timedelta(minutes=1))
    with pytest.raises(Expired):
        fleet.machine().look_up(OLD)


def test_a_machine_with_history_refuses_an_older_state_at_once(
    tmp_path: Path, fleet: Fleet, files: Files
) -> None:
    older = files.copy(tmp_path / "older")
    fleet.publish(OLD, "replaced")
    machine = fleet.machine()
    assert outcome(machine, OLD) == "replaced"
    files.restore(older)
    with pytest.raises(RolledBack):
        machine.look_up(OLD)


def test_a_machine_whose_history_is_older_than_the_store_goes_on_to_the_newest(
    fleet: Fleet,
) -> None:
    machine = fleet.machine()
    assert outcome(machine, OLD) == "old"
    before = seen(machine)
    for word in ("second", "third"):
        fleet.publish(OLD, word)
    assert machine.look_up(OLD).parcel == parcel("third")
    snapshot, timestamp = seen(machine)
    assert (snapshot > before[0], timestamp > before[1]) == (True, True)


def test_a_machine_whose_history_has_expired_reads_a_store_that_has_not(
    tmp_path: Path, after: Callable[[timedelta], None]
) -> None:
    """A machine that was off for longer than the timestamp that it has seen is valid."""
    fleet = Fleet(tmp_path, validity=LASTING)
    fleet.publisher(validity=BRIEF).publish({OLD: parcel("old").pack()})
    machine = fleet.machine()
    assert outcome(machine, OLD) == "old"
    after(BRIEF.timestamp + timedelta(minutes=1))
    with pytest.raises(Expired):
        machine.look_up(OLD)
    fleet.publisher("dev").renew()
    assert outcome(machine, OLD) == "old"


@pytest.mark.parametrize("history", [False, True])
def test_an_expired_store_is_refused_with_and_without_history(
    history: bool, fleet: Fleet, after: Callable[[timedelta], None]
) -> None:
    machine = fleet.machine()
    if history:
        machine.look_up(OLD)
    after(VALIDITY.timestamp + timedelta(minutes=1))
    with pytest.raises(Expired, match=r"timestamp\.json is expired"):
        machine.look_up(OLD)
