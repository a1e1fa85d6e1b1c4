"""Limits of resources, and no new privileges."""

from __future__ import annotations

import sys
from typing import Final

from penstock.ipc.sandbox import kernel
from penstock.ipc.sandbox.policy import SandboxPolicy
from penstock.ipc.sandbox.report import Measure

PRIVILEGES: Final = "no new privileges"
LIMITS: Final = "resource limits"


def drop_privileges() -> Measure:
    """No program that is executed later gets more rights than this process has; not to be undone."""
    if sys.platform != "linux":
        return Measure(PRIVILEGES, False, "Linux alone has it")
    try:
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    except OSError as error:
        return Measure(PRIVILEGES, False, f"the kernel refuses: {error}")
    return Measure(PRIVILEGES, True, "set for good")


def detect_privileges() -> Measure:
    """Whether the kernel has it."""
    if sys.platform != "linux":
        return Measure(PRIVILEGES, False, "Linux alone has it")
    try:
        kernel.prctl(kernel.PR_GET_NO_NEW_PRIVS)
    except OSError as error:
        return Measure(PRIVILEGES, False, f"the kernel does not know it: {error}")
    return Measure(PRIVILEGES, True, "available")


def half_of(name: str) -> int | None:
    """Half of what this process may have of the limit *name*; None where there is none."""
    if sys.platform == "win32":
        return None
    import resource

    kind = getattr(resource, name, None)
    if kind is None:
        return None
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft // 2


def limit(policy: SandboxPolicy) -> Measure:
    """Lowers the limits to those of *policy*; none is raised."""
    if sys.platform == "win32":
        return Measure(LIMITS, False, "this system has none")
    import resource

    wanted = [
        ("core dumps", "RLIMIT_CORE", 0),
        ("descriptors", "RLIMIT_NOFILE", policy.max_descriptors),
        ("address space", "RLIMIT_AS", policy.max_address_space),
        ("processes", "RLIMIT_NPROC", policy.max_processes),
        ("waiting signals", "RLIMIT_SIGPENDING", policy.max_signals),
    ]
    done, failed = [], []
    for what, name, value in wanted:
        if value is None:
            continue
        kind = getattr(resource, name, None)
        if kind is None:
            failed.append(what)
            continue
        try:
            _, hard = resource.getrlimit(kind)
            least = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (least, least))
        except (OSError, ValueError) as error:
            failed.append(f"{what}: {error}")
        else:
            done.append(f"{what} {least}")
    if failed:
        return Measure(LIMITS, False, "; ".join(failed))
    return Measure(LIMITS, True, ", ".join(done))


def detect_limits() -> Measure:
    """Whether there are limits here."""
    if sys.platform == "win32":
        return Measure(LIMITS, False, "this system has none")
    return Measure(LIMITS, True, "available")
