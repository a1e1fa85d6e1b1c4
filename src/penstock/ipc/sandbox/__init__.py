"""The sandbox of a driver's process, applied before it serves.

Each measure is applied if the system supports it; the report lists the missing ones. `apply`
restricts the calling thread and the threads that it starts later. A thread that ran before is
restricted by every measure but Landlock, and the report notes that.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.ipc.sandbox import kernel, seccomp, view
from penstock.ipc.sandbox.kernel import Measure, SandboxReport
from penstock.ipc.sandbox.policy import SandboxPolicy, host_policy

__all__ = [
    "Measure",
    "SandboxPolicy",
    "SandboxReport",
    "apply",
    "detect",
    "enter_view",
    "host_policy",
]


def enter_view(policy: SandboxPolicy) -> SandboxPolicy:
    """Restricts this process, in its own namespaces, to the files of *policy*, without
    capabilities. Returns the policy there. Raises `OSError`; the process is unusable then.
    """
    written = view.enter(policy.shown(), policy.listed(), policy.write)
    kernel.drop_capabilities()
    # Half of the limits of this process and of all the user's processes apply from here on: other
    # processes keep the other half.
    return policy._replace(
        write=written,
        lists=True,
        max_processes=kernel.half_of("RLIMIT_NPROC"),
        max_signals=kernel.half_of("RLIMIT_SIGPENDING"),
    )


def apply(
    policy: SandboxPolicy | None = None,
    apart: Measure | None = None,
    hand_over: Callable[[int], None] | None = None,
) -> SandboxReport:
    """Permanently drops the rights that *policy* does not allow.

    *apart* is the result for namespaces. Never raises for a missing feature of the system. With
    *hand_over*, which sends a descriptor, another process lists rejected calls. The process already
    has its sockets and descriptors.
    """
    policy = SandboxPolicy() if policy is None else policy
    measures = [kernel.drop_privileges(), kernel.limit(policy), kernel.apply_landlock(policy)]
    return SandboxReport((*([] if apart is None else [apart]), *measures, seccomp.apply(hand_over)))


def detect() -> SandboxReport:
    """The measures that `apply` would find here; changes nothing."""
    measures = [kernel.detect_namespaces(), kernel.drop_privileges(detect=True), kernel.limit(None)]
    return SandboxReport((*measures, kernel.detect_landlock(), seccomp.detect()))
