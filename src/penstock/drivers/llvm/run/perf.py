"""Tells `perf` the names of generated functions, in the map that it reads for a process."""

from __future__ import annotations

import os
import sys

from penstock.drivers.llvm.load import Image
from penstock.logs import Log

log = Log(__name__)


def path() -> str:
    """The map of this process, where `perf` looks for it."""
    return f"/tmp/perf-{os.getpid()}.map"  # noqa: S108  # perf reads it there alone


def announce(image: Image) -> None:
    """Adds a line for each function of *image*. A failure is logged. Does nothing on other systems
    than Linux.
    """
    if sys.platform != "linux":
        return
    lines = [
        f"{address:x} {size:x} penstock:{name}\n"
        for name, (address, size) in sorted(image.functions.items(), key=lambda item: item[1])
    ]
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        file = os.open(path(), flags, 0o600)
        try:
            os.write(file, "".join(lines).encode())
        finally:
            os.close(file)
    except OSError as error:
        log.warning("perf's map cannot be written: %s", error)
