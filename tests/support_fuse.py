"""A file of a FUSE file system whose program opens it, and answers nothing else."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

DEVICE: Final = "/dev/fuse"
NOSUID_NODEV: Final = 6
FORCE_DETACH: Final = 3
ROOT_IS_A_FILE: Final = "rootmode=100000,user_id=0,group_id=0"

# A process of its own, which ends by itself: nobody can kill who waits for it.
PROGRAM: Final = """
import os, signal, struct, sys
signal.alarm(30)
device = int(sys.argv[1])
OPEN, INIT = 14, 26
while True:
    _, operation, unique = struct.unpack_from("<IIQ", os.read(device, 1 << 17))
    if operation == INIT:
        reply = struct.pack("<6I", 7, 31, 0, 0, 0, 4096) + bytes(40)
    elif operation == OPEN:
        reply = struct.pack("<QII", 1, 0, 0)
    else:
        continue
    os.write(device, struct.pack("<IiQ", 16 + len(reply), 0, unique) + reply)
"""


def unable() -> str | None:
    """Why there is no such file here."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root, to mount a file system"
    try:
        os.close(os.open(DEVICE, os.O_RDWR))
    except OSError as error:
        return f"needs {DEVICE}: {error}"
    return None


@contextmanager
def stuck_file(place: Path) -> Iterator[int]:
    """A descriptor of *place*, on which every further call lasts until the block ends, and half a
    minute at most.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    place.touch()
    target = os.fsencode(place)
    device = os.open(DEVICE, os.O_RDWR)
    try:
        options = f"fd={device},{ROOT_IS_A_FILE}".encode()
        if libc.mount(b"none", target, b"fuse", NOSUID_NODEV, options):
            raise OSError(ctypes.get_errno(), f"{place} cannot be mounted")
        command = [sys.executable, "-I", "-S", "-c", PROGRAM, str(device)]
        program = subprocess.Popen(command, pass_fds=[device])
    finally:
        os.close(device)
    with program:
        try:
            fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
            yield fd
        finally:
            # Its end is the end of all waiting.
            program.kill()
            program.wait()
            libc.umount2(target, FORCE_DETACH)
    with suppress(OSError):
        os.close(fd)
