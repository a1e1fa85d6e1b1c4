"""The number of threads that this process may use."""

from __future__ import annotations

import math
import os
from typing import Final

from penstock import knobs
from penstock.arguments import check_kind
from penstock.errors import BadSetting

MOST_A_CORE: Final = 4

VARIABLES: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables by which libraries take the number of their threads."""


def allowed_threads(argument: int | None = None) -> int:
    """The thread count: *argument*, else the knob `num_threads`, else a default; at least 1.

    The default is the number of processors that CPU affinity and the cgroup's CPU quota allow
    (cgroup v2 `cpu.max`), or `OMP_NUM_THREADS` if lower. An explicit number may be up to
    `MOST_A_CORE` for each core of the machine, because engines' threads spin while they wait for
    each other.
    """
    if argument is not None:
        check_kind(argument, int, "threads are a whole number")
        # To count processors reads a file.
        most = MOST_A_CORE if argument <= MOST_A_CORE else _most()
        return max(1, min(argument, most))
    knob = knobs.num_threads()
    if knob < 0:
        raise BadSetting(f"knob num_threads is {knob}; 0 means what the machine allows")
    if knob > 0:
        return min(knob, _most())
    limit = allowed_processors()
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if first.isdigit() and int(first) > 0:
        limit = min(limit, int(first))
    return limit


def _most() -> int:
    """The most threads that a call may ask for."""
    return MOST_A_CORE * (os.cpu_count() or 1)


def allowed_processors() -> int:
    """Processors that CPU affinity and the cgroup's CPU quota allow this process; at least 1."""
    limit = _affinity()
    if (quota := _cgroup_quota()) is not None:
        limit = min(limit, max(1, math.ceil(quota)))
    return limit


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def _cgroup_quota(path: str = "/sys/fs/cgroup/cpu.max") -> float | None:
    """CPUs of quota per period; None without a limit."""
    try:
        with open(path, "rb") as file:
            quota, period = file.read().split()
        return None if quota == b"max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
