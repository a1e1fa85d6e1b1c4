"""A host that dies, stops, goes mad or runs out before or after each kind of message: by its
deadline a call has the right answer or one of the errors that the fault may have, the next call is
right, and nothing is left behind. The whole grid is in tests/soak/soak_isolation.py.
"""

from __future__ import annotations

import gc
import random
import tempfile
from collections.abc import Iterator
from typing import Any, Final

import pytest

from penstock.ipc import ring, supervision
from penstock.testing.resources import Resources

pytest.importorskip("resource", reason="limits of resources are Unix's")

from tests import support_chaos as chaos  # needs `resource`
from tests.support_chaos_calls import CALLS, Deadline, Rig
from tests.support_chaos_faults import FAULTS, MESSAGES, RING_KINDS, Fault, Point

SEED: Final = 7

HARD: Final = (
    Point("Execute", "stopped", "after"),
    Point("LendPool", "stopped", "before"),
    Point("Lend", "stopped", "after"),
    Point("Hello", "no memory in the host", "before"),
    Point("Drop", "no memory in the host", "before"),
    Point("LendPool", "no memory in the host", "before"),
    Point("LendPool", "no descriptor in the host", "after"),
    Point("BIND", "no descriptor in the host", "after"),
    Point("CopyFrom", "memory gone", "before"),
)
"""Where most is left to be given back, and those that take the time until a process is taken for
hung.
"""


def sample() -> list[Point]:
    """Each message with a fault before it and another after it, and those that are hard."""
    draw = random.Random(SEED)
    faults = [fault for fault in FAULTS if fault != "stopped"]
    draw.shuffle(faults)
    drawn = [
        Point(message, faults[(at + shift) % len(faults)], when)
        for at, message in enumerate(CALLS)
        for shift, when in ((0, "before"), (4, "after"))
    ]
    return list(dict.fromkeys((*drawn, *HARD)))


def test_every_message_has_its_chaos() -> None:
    assert set(CALLS) == MESSAGES
    assert set(RING_KINDS) == set(range(ring.BIND + 1))
    assert len(chaos.GRID) == 2 * len(FAULTS) * len(MESSAGES)
    assert {point.fault for point in sample()} == set(FAULTS) == set(chaos.NAMED)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with pytest.MonkeyPatch.context() as patch, Resources.unchanged("chaos"):
        for name in ("PENSTOCK_STATE_DIR", "TMPDIR"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name.lower())))
        patch.setattr(tempfile, "tempdir", None)
        patch.setenv("PENSTOCK_DRIVER_TIMEOUT_MS", "2500")
        patch.setattr(supervision, "FIRST_PAUSE", 0.0)
        # What other tests left is neither counted nor looked through again.
        gc.freeze()
        made = Rig()
        yield made
        made.close()
        del made


def identity(point: Point) -> str:
    return "-".join(point).replace(" ", "_")


@pytest.mark.slow
@pytest.mark.parametrize("point", [pytest.param(p, id=identity(p)) for p in sample()])
def test_a_fault_at_a_message(rig: Rig, point: Point) -> None:
    assert chaos.round_of(rig, point) == []


def test_chaos_finds_leaks_and_wrong_outcomes(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that is wrong, late, and leaves things behind, and a fault that never came."""
    kept: list[Any] = []

    def careless(rig: Rig, _: Deadline) -> None:
        kept.append(tempfile.NamedTemporaryFile())  # noqa: SIM115  # left open
        rig.right = rig.right + 1
        raise ValueError("careless")

    monkeypatch.setitem(CALLS, "Check", careless)
    monkeypatch.setattr(chaos, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(rig, "warm_up", lambda _: None)
    monkeypatch.setattr(rig, "run", lambda _: None)
    right = rig.right
    found = chaos.round_of(rig, Point("Check", "paused", "after"))
    rig.right = right
    kept.pop().close()
    assert found[:2] == ["raised ValueError('careless')", "the message was not sent"]
    # Without time to settle, what calls before have let go of may still be going.
    assert {wrong.partition(":")[0] for wrong in found[2:]} >= {"descriptors", "files"}
    assert not Fault(rig.supervisor, Point("Check", "paused", "after")).struck
