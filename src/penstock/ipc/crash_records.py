"""How host processes ended: their last output, and records of crashes.

`penstock doctor --last-crash` shows the newest record.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

from penstock.errors import PenstockError, Unreadable
from penstock.hal.loading import MAX_SHOWN
from penstock.ipc.host.heartbeat import LOST, LOST_STATUS
from penstock.ipc.host_sockets import Place
from penstock.ir import Model
from penstock.logs import Log, printable
from penstock.processes import Process, this_process
from penstock.sealed.files import SYSTEM_FILES
from penstock.sealed.places import make_private_directory, state_directory
from penstock.sealed.replacing import replace_file

log = Log("penstock.ipc")

MOST_KEPT: Final = 20
"""Most stored crashes; older ones are deleted."""

MOST_OPERATIONS: Final = 64
"""Most operations of a model that a crash record names."""

SUFFIX: Final = ".crash.json"
DIGITS: Final = 13

TAIL_BYTES: Final = 16_384

ENDED_BY_OTHERS: Final = frozenset({"was ended by SIGKILL", "was ended by SIGTERM"})
"""How a process ended that another one ended, in the words of `how_ended`."""


class Evidence(msgspec.Struct, frozen=True):
    """A call in progress at a crash: its name, device and version, and the model.

    The model is given by digests of structure and constants in hexadecimal, and by its operations
    as `number (TYPE, name)`.
    """

    call: str
    device: str = ""
    version: str = ""
    model: str = ""
    operations: tuple[str, ...] = ()


class Underway(NamedTuple):
    """A call under way."""

    call: str
    device: str
    version: str
    model: Model | None = None

    def evidence(self) -> Evidence:
        """Contents for a crash record."""
        if self.model is None:
            return Evidence(self.call, self.device, self.version)
        entry, digest = self.model.entry, self.model.digest
        operations = tuple(
            f"{at} ({operation.key}, {entry.operation_name(at)!r})"
            for at, operation in enumerate(entry.operations[:MOST_OPERATIONS])
        )
        digits = (digest.structure + digest.constants).hex()
        return Evidence(self.call, self.device, self.version, digits, operations)


class Crash(msgspec.Struct, frozen=True):
    """How the process of a driver ended.

    *when* is seconds since 1970. *deaths* counts consecutive deaths in *program*, the process that
    used the driver; a quarantine applies to that process alone.
    """

    driver: str
    entry: str
    pid: int
    how: str
    when: float
    deaths: int
    underway: tuple[Evidence, ...]
    output: str
    python: str = ""
    quarantined: bool = False
    program: Process | None = None

    @classmethod
    def of(cls, place: Place, calls: Sequence[Underway], **facts: Any) -> Crash:
        """A crash of the driver of *place*, now, during *calls*; *facts* are the other fields."""
        import platform

        return cls(
            driver=place.name,
            entry=place.value,
            when=time.time(),
            underway=tuple(call.evidence() for call in calls),
            python=platform.python_version(),
            program=this_process(),
            **facts,
        )

    def keep(self) -> None:
        """Writes it to the state directory. A failure to write is logged."""
        try:
            directory = crash_directory()
            make_private_directory(directory)
            # Newest by name, also after the clock was set back.
            known = [_number(name) + 1 for name in _names(directory)]
            number = max(int(self.when * 1000), *known, 0)
            path = os.path.join(directory, f"{number:0{DIGITS}d}-{self.pid}{SUFFIX}")
            replace_file(path, msgspec.json.format(msgspec.json.encode(self)), SYSTEM_FILES)
            for old in _names(directory)[:-MOST_KEPT]:
                with suppress(OSError):
                    os.unlink(os.path.join(directory, old))
        except (OSError, PenstockError) as error:
            log.warning("the crash of driver %s could not be kept: %s", self.driver, error)


def crash_directory() -> str:
    """Where crashes are kept."""
    return os.path.join(state_directory(), "crashes")


def last_crash() -> Crash | None:
    """The newest stored crash; None if no record can be read."""
    try:
        directory = crash_directory()
    except Unreadable:
        return None
    for name in reversed(_names(directory)):
        try:
            with open(os.path.join(directory, name), "rb") as file:
                return msgspec.json.decode(file.read(), type=Crash)
        except (OSError, msgspec.MsgspecError):
            continue
    return None


def _number(name: str) -> int:
    digits = name.partition("-")[0]
    return int(digits) if digits.isdecimal() and len(digits) <= DIGITS else 0


def _names(directory: str) -> list[str]:
    try:
        return sorted(n for n in os.listdir(directory) if n.endswith(SUFFIX))
    except OSError:
        return []


def how_ended(status: int | None) -> str:
    """Describes a status of `os.waitpid`; None if the status is unknown."""
    if status is None or sys.platform == "win32":
        return "ended"
    import signal

    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with suppress(ValueError):
            return f"was ended by {signal.Signals(number).name}"
        return f"was ended by signal {number}"
    return f"ended with exit status {os.WEXITSTATUS(status)}"


def reason_of_loss(status: int | None, output: str) -> str:
    """Why a process ended itself because its driver had lost its engine; "" for another end."""
    if status is None or sys.platform == "win32" or not os.WIFEXITED(status):
        return ""
    if os.WEXITSTATUS(status) != LOST_STATUS:
        return ""
    lines = [line for line in output.splitlines() if line.startswith(LOST)]
    return lines[-1].removeprefix(LOST).strip()[:MAX_SHOWN] if lines else ""


def wrote_last(output: str) -> str:
    """The end of a sentence with the last line of *output*; empty if there is none."""
    lines = output.splitlines()
    return f"; it wrote last: {lines[-1].strip()[:MAX_SHOWN]}" if lines else ""


def tail(output: int, most: int = TAIL_BYTES) -> str:
    """The end of a host's output, without control characters for terminals."""
    if sys.platform == "win32":
        return ""
    try:
        size = os.fstat(output).st_size
        content = os.pread(output, most, max(0, size - most))
    except OSError:
        return ""
    return printable(content.lstrip(b"\0").decode("utf-8", "replace"))
