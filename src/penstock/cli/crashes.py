"""`penstock doctor --last-crash`: how the process of an isolated driver ended last."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.cli.output import shortened
from penstock.errors import counted

if TYPE_CHECKING:
    from penstock.cli.output import Output
    from penstock.ipc.crash_records import Crash

SHOWN_OPERATIONS: Final = 4
LONGEST_NAME: Final = 60
"""Characters of an operation in the list of those that a call had."""


def show_last_crash(output: Output) -> None:
    """Prints the newest crash that was kept, or that there is none."""
    from penstock.ipc.crash_records import crash_directory, last_crash

    crash = last_crash()
    if crash is None:
        output.line(
            f"no process of an isolated driver has died: nothing is kept in {crash_directory()}"
        )
        output.json({"crash": None})
        return
    rows = [
        ("driver", f"{crash.driver} ({crash.entry})"),
        ("process", f"{crash.pid} {crash.how}" if crash.pid else crash.how),
        ("when", _when(crash.when)),
        ("deaths in a row", str(crash.deaths)),
        ("quarantined", _quarantine(crash)),
    ]
    for call in crash.underway:
        what = (
            call.call
            if not call.device
            else f"{call.call} on {call.device}, version {call.version}"
        )
        rows.append(("call under way", what))
        if call.model:
            rows.append(("its model", call.model))
            rows.append(("its operations", _few(call.operations)))
    if not crash.underway:
        rows.append(("call under way", "none"))
    output.line("what the process wrote last:" if crash.output else "the process wrote nothing")
    for line in crash.output.splitlines():
        output.line(f"  {line}")
    output.table(("crash", ""), rows, whole=("crash",))
    output.json({"crash": described(crash)})


def _few(operations: Sequence[str]) -> str:
    """The first of *operations*, and how many more there are."""
    from penstock.ipc.crash_records import MOST_OPERATIONS

    text = ", ".join(shortened(one, LONGEST_NAME) for one in operations[:SHOWN_OPERATIONS])
    more = len(operations) - SHOWN_OPERATIONS
    if more <= 0:
        return text
    least = "at least " if len(operations) >= MOST_OPERATIONS else ""
    return f"{text}, and {least}{more} more (--json has their names)"


def described(crash: Crash) -> dict[str, Any]:
    """What `--json` says of a crash."""
    told: dict[str, Any] = msgspec.to_builtins(crash)
    return told


def last_in_words() -> str | None:
    """The newest crash in one line; None where there is none."""
    from penstock.ipc.crash_records import last_crash

    crash = last_crash()
    if crash is None:
        return None
    told = f"the last crash: driver {crash.driver} {crash.how}, {_when(crash.when)}"
    if crash.quarantined:
        told += f", quarantined: {_quarantine(crash)}"
    return f"{told} (doctor --last-crash says more)"


def _quarantine(crash: Crash) -> str:
    """Whether it brought a quarantine: whose, and how long that lasts."""
    if not crash.quarantined:
        return "no"
    from penstock.ipc.supervision import QUARANTINE_SECONDS

    end = crash.when + QUARANTINE_SECONDS
    until = time.strftime("%H:%M:%S", time.localtime(end))
    if (left := end - time.time()) <= 0:
        return f"until {until}, over now"
    whose = f"process {crash.program.pid}" if crash.program else "the program that used it"
    ended = crash.program.ended() if crash.program else None
    if ended:
        return f"no longer: it was of {whose} alone, which has ended"
    told = f"until {until}, {max(1, round(left))} s more, in {whose} alone"
    return f"{told}; ending that lifts it" if ended is False else f"{told}, unless that has ended"


def _when(when: float) -> str:
    ago = max(0, int(time.time() - when))
    for unit, seconds in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if ago >= 2 * seconds:
            return f"{ago // seconds} {unit} ago"
    return f"{counted(ago, 'second')} ago"
