"""A process that does not outlive its parent."""

from __future__ import annotations

import os
import signal
import sys
from typing import Final

from penstock.ipc.sandbox import kernel

PR_SET_PDEATHSIG: Final = 1


def die_with_parent() -> None:
    """As `die_with`, of whoever is the parent now."""
    if sys.platform != "win32":
        kernel.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def die_with(parent: int) -> None:
    """From now on the kernel kills this process when *parent* ends: see prctl(2), PR_SET_PDEATHSIG,
    which the sandbox's list of calls does not have.
    """
    if sys.platform == "win32":
        return
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)
