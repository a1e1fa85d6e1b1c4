"""Loaded code: what all runs of one model share."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import sys
from typing import TYPE_CHECKING, Final

from penstock.drivers.llvm.artefact import Manifest
from penstock.drivers.llvm.load import Image
from penstock.drivers.llvm.run.addresses import is_aligned, moved
from penstock.ir import NDArray
from penstock.knobs import DriverSetting

if TYPE_CHECKING:
    from penstock.drivers.llvm.run.faults import Registered

perf_map: Final = DriverSetting("llvm_perf_map", ("no", "yes"))
"""Whether the functions of loaded code are added to `/tmp/perf-PID.map` (Linux)."""

FORKED: Final = "the model was prepared before this process was forked; compile it again"

ENTRY: Final = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)

ENTRY_WITH_LOCK: Final = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
"""As `ENTRY`, but Python's lock is kept meanwhile."""

KEEPS_LOCK_NS: Final = 1_000
"""Estimated nanoseconds of a run below which the lock is kept. To give it back takes as long, and
another thread that takes it may keep it for milliseconds.
"""


_forks: Final[list[None]] = []
"""One entry for each fork between the first process and this one."""

forks_so_far: Final = _forks.__len__
"""How many forks there are between the first process and this one."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _forks.append(None))


class Code:
    """The code of one model, loaded: *image* is the code, *constants* what it reads. Up to
    *threads* threads execute a run.

    Runs hold it: the image is unmapped once the model is closed and the last run has ended, and
    once no thread of the team is in it.
    """

    def __init__(
        self, manifest: Manifest, image: Image, constants: NDArray, threads: int = 1
    ) -> None:
        self.manifest = manifest
        self.constants = constants if is_aligned(constants) else moved(constants)
        self.image = image
        if perf_map() == "yes":
            from penstock.drivers.llvm.run import perf

            perf.announce(image)
        self.faults = _named(image, manifest)
        keeps = manifest.estimate_ns < KEEPS_LOCK_NS and not manifest.shared
        self.entry = (ENTRY_WITH_LOCK if keeps else ENTRY)(image.address("run"))
        self._forks = forks_so_far()
        self.threads, self._member = 1, None
        if manifest.shared and threads > 1:
            # Not imported for models that run on one thread: they start sooner.
            from penstock.drivers.llvm.run import team

            self.threads = min(threads, team.MOST_THREADS)
            self._member = team.join(image, self.threads)

    @property
    def team(self) -> int:
        """The address of the team; 0 for none."""
        return 0 if self._member is None else self._member.address

    def unusable(self) -> str | None:
        """Why this process cannot run the code: it was forked from the one that loaded it."""
        return None if self._forks == forks_so_far() else FORKED

    def __del__(self) -> None:
        if (registered := getattr(self, "faults", None)) is not None:
            registered.forget()
        if (member := getattr(self, "_member", None)) is not None:
            member.leave()


def _named(image: Image, manifest: Manifest) -> Registered | None:
    """Names the kernels of *image* where they fault; None if nobody asks for it here."""
    if not faulthandler.is_enabled() or sys.platform != "linux":
        return None
    from penstock.drivers.llvm.run import faults

    return faults.register(image, manifest)
