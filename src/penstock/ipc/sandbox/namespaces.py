"""Namespaces of a driver's own: of users, mounts, processes, System V objects and networks
(namespaces(7)).

Where the kernel lets an ordinary user have them, the driver's process sees no file system but a
view of what it may read (`view`), no processes but its own, no queues, and no network. What it
keeps is its user's number and groups, without any capability.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Final

from penstock.ipc.sandbox import kernel
from penstock.ipc.sandbox.report import Measure

NAME: Final = "namespaces"

NEWNS: Final = 0x0002_0000
NEWIPC: Final = 0x0800_0000
NEWUSER: Final = 0x1000_0000
NEWPID: Final = 0x2000_0000
NEWNET: Final = 0x4000_0000

HELD: Final = "users, mounts, processes, System V objects and networks of its own"

CAPABILITIES_VERSION: Final = 0x2008_0522


def enter() -> None:
    """Moves this process, which has one thread, to namespaces of its own; of processes those that
    it starts are the first.

    Raises `OSError` where the kernel refuses; this process is of no further use then.
    """
    if sys.platform == "win32":
        raise OSError("namespaces are Linux's")
    user, group = os.geteuid(), os.getegid()
    kernel.unshare(NEWUSER | NEWNS | NEWPID | NEWIPC | NEWNET)
    # Whoever has no right to change groups may give them no names either.
    Path("/proc/self/setgroups").write_text("deny", "ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", "ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", "ascii")


def drop_capabilities() -> None:
    """Gives up what the namespaces' first process may do in them. Raises `OSError`."""
    header = ctypes.create_string_buffer((CAPABILITIES_VERSION).to_bytes(4, "little") + bytes(4), 8)
    kernel.capset(header, bytes(24))


def held() -> Measure:
    """What is said of a process that is in them."""
    return Measure(NAME, True, HELD)


def detect() -> Measure:
    """Whether the kernel lets this user have them: tried in another process."""
    if sys.platform != "linux":
        return Measure(NAME, False, "Linux alone has them")
    import subprocess

    command = [sys.executable, "-P", "-c", f"from {__name__} import enter; enter()"]
    try:
        tried = subprocess.run(  # noqa: S603  # itself
            command, capture_output=True, timeout=30, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Measure(NAME, False, f"it cannot be tried: {error}")
    if tried.returncode:
        last = tried.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        return Measure(NAME, False, f"the kernel refuses them: {last}")
    return Measure(NAME, True, "available")
