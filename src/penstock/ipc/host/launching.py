"""The driver's process is started: in namespaces of its own where the kernel lets this user have
them, else without.

With them there are two more processes on the way. A process cannot move to another namespace of
processes, it can only start some there; and the first one in it hears no signal of its own, so that
it can be no driver: it waits for that, and tells how it ended.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, NoReturn

from penstock.ipc.linux import LINUX_ONLY
from penstock.ipc.sandbox import kernel, namespaces
from penstock.ipc.sandbox.parent import die_with, die_with_parent
from penstock.ipc.sandbox.report import Measure

STARTED: Final = b"+"
READY: Final = b"="
REFUSED: Final = b"-"
ENDED: Final = b"!"
"""Each begins a line of what is told: a process's number, nothing, a reason, a status."""

PR_SET_CHILD_SUBREAPER: Final = 36

MOST_REASON: Final = 512


class Launched(NamedTuple):
    """In the parent: the child *process* to wait for, and the descriptor that tells how the
    driver's process ended, -1 where the child is that process, after what it has *said* already.
    """

    process: int
    told: int = -1
    said: bytes = b""


def launch(
    drive: Callable[[Measure, Callable[[], None]], NoReturn],
    *,
    apart: bool,
    kept: Sequence[socket.socket] = (),
) -> Launched:
    """Starts a process in which *drive* is called, with what is said of its namespaces and what is
    to be called once they are set up: an `OSError` before that ends the process, and it is started
    again without any. Without *apart* none are tried. The sockets *kept* are this process's alone.

    To be called before this process has other threads.
    """
    if sys.platform == "win32":
        raise OSError(LINUX_ONLY)
    reason = "switched off by the knob namespaces"
    if apart:
        (told, tell), (heard, say) = os.pipe(), os.pipe()
        kernel.prctl(PR_SET_CHILD_SUBREAPER, 1)
        parent = os.getpid()
        first = os.fork()
        if not first:
            _close(kept)
            os.close(told)
            os.close(say)
            _enter(tell, heard, parent, drive)
        os.close(tell)
        os.close(heard)
        os.waitpid(first, 0)
        # Only now is this process the parent of the one in the namespaces, to end with.
        with suppress(BrokenPipeError):
            os.write(say, READY)
        os.close(say)
        launched = _launched(told)
        if isinstance(launched, Launched):
            return launched
        reason = launched
    parent = os.getpid()
    driver = os.fork()
    if not driver:
        _close(kept)
        die_with(parent)
        drive(Measure(namespaces.NAME, False, reason), _nothing)
    return Launched(driver)


def _close(sockets: Sequence[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def _nothing() -> None:
    """Nothing was set up."""


def _launched(told: int) -> Launched | str:
    """The first process in the namespaces, once the driver's is set up; else the reason why there
    is none.
    """
    process, reason, said = 0, b"the process that tried them ended", b""
    while part := os.read(told, 1 << 12):
        said += part
        while b"\n" in said:
            line, _, said = said.partition(b"\n")
            if line.startswith(STARTED):
                process = int(line[1:])
            elif line == READY:
                return Launched(process, told, said)
            elif line.startswith(REFUSED):
                reason = line[1 : 1 + MOST_REASON]
    os.close(told)
    if process:
        with suppress(ChildProcessError):
            os.waitpid(process, 0)
    return f"the kernel refuses them: {reason.decode('utf-8', 'replace')}"


def _enter(
    tell: int, heard: int, parent: int, drive: Callable[[Measure, Callable[[], None]], NoReturn]
) -> NoReturn:
    """In the process that the parent started: it ends as soon as there is one in the namespaces,
    which is then the parent's.
    """
    if sys.platform == "win32":
        raise OSError(LINUX_ONLY)
    try:
        namespaces.enter()
        first = os.fork()
    except OSError as error:
        _refuse(tell, error)
    if first:
        os.write(tell, b"%s%d\n" % (STARTED, first))
        os._exit(0)
    if os.read(heard, 1) != READY:
        os._exit(1)
    os.close(heard)
    die_with_parent()
    driver = os.fork()
    if driver:
        _wait_for(driver, tell)
    if _is_orphan(parent):
        os._exit(1)
    try:
        drive(namespaces.held(), lambda: _ready(tell))
    except OSError as error:
        _refuse(tell, error)


def _is_orphan(parent: int) -> bool:
    """Whether *parent* ended before the kernel was told to end this process with it."""
    return not os.path.exists(f"/proc/{parent}")


def _ready(tell: int) -> None:
    os.write(tell, READY + b"\n")
    os.close(tell)


def _refuse(tell: int, error: OSError) -> NoReturn:
    told = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
    with suppress(OSError):
        os.write(tell, REFUSED + told.replace("\n", " ").encode("utf-8", "replace") + b"\n")
    os._exit(1)


def _wait_for(driver: int, tell: int) -> NoReturn:
    """As the first process of the namespaces, which is every orphan's parent too: until the driver
    ends, how it does is told.
    """
    if sys.platform == "win32":
        raise OSError(LINUX_ONLY)
    os.closerange(0, tell)
    os.closerange(tell + 1, 1 << 16)
    while True:
        process, status = os.waitpid(-1, 0)
        if process == driver:
            with suppress(OSError):
                os.write(tell, b"%s%d\n" % (ENDED, status))
            os._exit(0)


def status_of(launched: Launched) -> int:
    """How the driver's process ended, as `os.waitpid` tells it, once the child to wait for has."""
    status = os.waitpid(launched.process, 0)[1]
    if launched.told < 0:
        return status
    said = launched.said
    # Its only writer has ended.
    while part := os.read(launched.told, 1 << 12):
        said += part
    os.close(launched.told)
    told = said.rpartition(ENDED)[2].removesuffix(b"\n")
    return int(told) if told.isdigit() else status
