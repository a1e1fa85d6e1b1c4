"""The program on a terminal of its own."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.conftest import ROOT


def on_terminal(*arguments: object, **environment: str) -> str:
    """Everything the program writes to a terminal that is both its stdout and its stderr."""
    ours, its = os.openpty()
    clean = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    clean |= {"COLUMNS": "100", "TERM": "xterm-256color", "PENSTOCK_DEVICES": "reference"}
    clean |= environment
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", *map(str, arguments)],
        stdout=its,
        stderr=its,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
        env=clean,
    ) as process:
        os.close(its)
        printed = bytearray()
        while part := _read(ours):
            printed += part
        os.close(ours)
    assert process.returncode == 0, printed.decode()
    return printed.decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # how Linux says that the other end has closed
        return b""
