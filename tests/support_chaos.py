"""Faults of a driver's process before and after each kind of message, and what is left behind."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from penstock import errors
from penstock.ipc.crash_records import crash_directory
from penstock.memory import live_mappings
from tests.support_chaos_calls import CALLS, CHECKED_BY, Deadline, Rig
from tests.support_chaos_faults import FAULTS, Fault, Point

SECONDS: Final = 5.0
"""Until the deadline of a call with a fault."""

SHORT_SECONDS: Final = 1.0
"""The same where the process is stopped, before it is taken for hung."""

GRACE_SECONDS: Final = 1.0
"""What a busy machine may add to a deadline."""

NEXT_SECONDS: Final = 15.0
"""Until the deadline of the call after it, which may have to wait for the hung process, its end and
a start.
"""

SETTLE_SECONDS: Final = 5.0
"""Within which everything is as it was before."""

OUT_OF_ROOM: Final = frozenset(
    {errors.ResourceExhaustedTransient, errors.DeadObject, errors.MissedDeadlineTransient}
)

NAMED: Final[dict[str, frozenset[type[errors.PenstockError]]]] = {
    "killed": frozenset({errors.DeadObject}),
    "stopped": frozenset({errors.DeadObject, errors.MissedDeadlineTransient}),
    "paused": frozenset(),
    "garbage": frozenset({errors.DeadObject}),
    "oversized": frozenset({errors.DeadObject}),
    "no descriptor in the host": OUT_OF_ROOM,
    "no descriptor in the client": frozenset(
        {errors.ResourceExhaustedTransient, errors.DeadObject}
    ),
    "no memory in the host": OUT_OF_ROOM,
    "no memory in the client": frozenset({errors.ResourceExhaustedTransient, errors.DeadObject}),
    "memory gone": frozenset({errors.InvalidArgument, errors.GeneralFailure}),
}
"""The errors that each fault may have, where the call has no answer."""

GRID: Final = tuple(
    Point(message, fault, when)
    for message in CALLS
    for fault in FAULTS
    for when in ("before", "after")
)


class Counts(NamedTuple):
    """What this process has: of *files* the directories that isolation writes to, but for records
    of crashes.
    """

    descriptors: Counter[str]
    children: int
    threads: int
    pools: int
    mappings: int
    files: Counter[str]

    @classmethod
    def now(cls) -> Counts:
        """After a garbage collection."""
        gc.collect()
        descriptors: Counter[str] = Counter()
        for link in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                descriptors[link.readlink().name.partition("[")[0].partition(":")[0]] += 1
        maps = Path("/proc/self/maps").read_text("utf-8", "replace")
        children: list[str] = []
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError):
                children += (task / "children").read_text("ascii").split()
        return cls(
            descriptors,
            len(children),
            threading.active_count(),
            live_mappings(),
            maps.count("/memfd:penstock"),
            files(),
        )

    def difference(self, before: Counts) -> list[str]:
        """What is another number than it was, in words; of threads what is more: one that others
        left may end meanwhile.
        """
        return [
            f"{name}: {then} -> {now}"
            for name, then, now in zip(self._fields, before, self, strict=True)
            if now != then and not (name == "threads" and self.threads < before.threads)
        ]


def files() -> Counter[str]:
    """How many files that isolation could leave are in each directory: in those that the
    environment names, to which nobody else writes, and in shared memory.
    """
    found = [p for p in Path("/dev/shm").glob("*") if "penstock" in p.name]
    for name in ("PENSTOCK_STATE_DIR", "TMPDIR"):
        found += Path(os.environ[name]).rglob("*")
    kept = Path(crash_directory())
    return Counter(str(path.parent) for path in found if kept not in {path, path.parent})


def round_of(rig: Rig, point: Point) -> list[str]:
    """One call with that fault and one more: their errors, and what they left behind."""
    message, kind, _ = point
    rig.warm_up(message)
    pid = rig.supervisor.connection().pid
    before_host, before = steady(rig), Counts.now()
    wrong: list[str] = []
    fault = Fault(rig.supervisor, point)
    deadline = Deadline(SHORT_SECONDS if kind == "stopped" else SECONDS)
    allowed = NAMED[kind] | ({errors.Cancelled} if message == "Cancel" else set())
    with fault.armed():
        began = time.monotonic()
        try:
            CALLS[message](rig, deadline)
        except errors.PenstockError as error:
            if type(error) not in allowed:
                wrong.append(f"raised {error!r}")
        except Exception as error:  # noqa: BLE001  # the finding
            wrong.append(f"raised {error!r}")
        spent = time.monotonic() - began
    if not fault.struck:
        wrong.append("the message was not sent")
    limit = deadline.seconds if message in CHECKED_BY else NEXT_SECONDS
    if spent > limit + GRACE_SECONDS:
        wrong.append(f"took {spent:.1f} s of {limit:.1f}")
    began = time.monotonic()
    try:
        rig.run(Deadline(NEXT_SECONDS))
    except Exception as error:  # noqa: BLE001  # the finding
        wrong.append(f"the next call raised {error!r} after {time.monotonic() - began:.1f} s")
        return wrong
    if (spent := time.monotonic() - began) > NEXT_SECONDS + GRACE_SECONDS:
        wrong.append(f"the next call took {spent:.1f} s")
    return wrong + left_behind(rig, pid, before_host, before)


def steady(rig: Rig) -> Counter[str]:
    """What the driver's process has once it has closed what was dropped before."""
    limit = time.monotonic() + SETTLE_SECONDS
    found = rig.settle()
    while True:
        time.sleep(0.02)
        known, found = found, rig.settle()
        if found == known or time.monotonic() > limit:
            return found


def left_behind(rig: Rig, pid: int, before_host: Counter[str], before: Counts) -> list[str]:
    """What is not as it was before: in this process, and in that of the driver, where it is the
    same still. What is dropped is closed in a thread of the driver's process.
    """
    limit = time.monotonic() + SETTLE_SECONDS
    while True:
        after_host = rig.settle()
        left = Counts.now().difference(before)
        if rig.supervisor.connection().pid == pid:
            left += [
                f"{name} in the host: {before_host[name]} -> {now}"
                for name, now in after_host.items()
                if now > before_host[name]
            ]
        if not left or time.monotonic() > limit:
            return left
        time.sleep(0.02)
