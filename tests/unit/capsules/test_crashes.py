"""What a capsule tells of a driver's process that died, and what it leaves out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import capsules
from penstock.capsules.making import of_crash, with_crash
from penstock.ipc.crash_records import Crash, Evidence
from tests.unit.capsules.test_archive import capsule


@pytest.fixture(autouse=True)
def somebody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("USER", "marigold")


def crash(device: str = "liar", when: float | None = None) -> Crash:
    return Crash(
        "liar",
        "liar_driver:create",
        4711,
        "killed by SIGSEGV",
        time.time() if when is None else when,
        1,
        (Evidence("execute", device, "3", "ab" * 32, ("2 (ADD, 'secret_sum')",)),),
        "reading /home/marigold/net.bin for marigold\nsecret_sum failed\n",
        "3.12",
    )


def test_a_crash_alone_is_a_capsule_without_a_step() -> None:
    crash().keep()
    found = with_crash(None)
    assert found is not None
    content = capsules.dump(found)
    for private in (b"marigold", b"secret", b"4711"):
        assert private not in content
    manifest = capsules.parse(content).manifest
    failure = manifest.failure
    assert (failure.stage, failure.device.name, failure.device.version) == ("crash", "liar", "3")
    assert failure.error == "killed by SIGSEGV"
    assert [(o.index, o.type) for o in failure.operations] == [(2, "ADD")]
    told: Any = msgspec.json.decode(manifest.crash)
    assert told["underway"][0]["operations"] == ["2 (ADD)"]
    assert "reading <path> for <user>" in told["output"]
    assert manifest.case is None


def test_a_crash_of_the_same_device_and_time_goes_with_the_failure() -> None:
    made = capsule()
    now = msgspec.structs.replace(made.manifest, created=time.time())
    made = msgspec.structs.replace(made, manifest=now)
    assert with_crash(made) is made
    crash().keep()
    found = with_crash(made)
    assert found is not None
    assert found.manifest.failure.stage == "verify"
    assert b"SIGSEGV" in bytes(found.manifest.crash)


@pytest.mark.parametrize(("age", "stage"), [(-100.0, "crash"), (100.0, "verify")])
def test_later_of_failure_and_crash_of_devices_counts(age: float, stage: str) -> None:
    made = capsule()
    when = 1_000_000.0
    made = msgspec.structs.replace(
        made, manifest=msgspec.structs.replace(made.manifest, created=when)
    )
    other = msgspec.structs.replace(crash("another", when - age), driver="another")
    other.keep()
    found = with_crash(made)
    assert found is not None
    assert found.manifest.failure.stage == stage


def test_a_crash_with_nothing_under_way() -> None:
    bare = msgspec.structs.replace(crash(), underway=())
    failure = of_crash(bare).manifest.failure
    assert (failure.device.name, failure.operations) == ("liar", ())
