"""What a driver's process gives up before it serves: each measure where the system has it, and what is missing said.

`apply` holds the calling thread and those that it starts later to all of it; a thread that ran before is held by
everything but Landlock, which the report then says.
"""

from __future__ import annotations

from penstock.ipc.sandbox import landlock, limits, seccomp
from penstock.ipc.sandbox.policy import SandboxPolicy, host_policy
from penstock.ipc.sandbox.report import Measure, SandboxReport

__all__ = ["Measure", "SandboxPolicy", "SandboxReport", "apply", "detect", "host_policy"]


def apply(policy: SandboxPolicy | None = None) -> SandboxReport:
    """Gives up what *policy* does not allow, for good. Never raises for what the system does not have.

    To be called by a process that has its sockets and its descriptors already.
    """
    policy = SandboxPolicy() if policy is None else policy
    return SandboxReport(
        (
            limits.drop_privileges(),
            limits.limit(policy),
            landlock.apply(policy),
            seccomp.apply(),
        )
    )


def detect() -> SandboxReport:
    """What `apply` would find here; changes nothing."""
    return SandboxReport(
        (
            limits.detect_privileges(),
            limits.detect_limits(),
            landlock.detect(),
            seccomp.detect(),
        )
    )
