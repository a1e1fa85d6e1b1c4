"""What a driver's process gives up before it serves: each measure where the system has it, and what
is missing said.

`apply` holds the calling thread and those that it starts later to all of it; a thread that ran
before is held by everything but Landlock, which the report then says.
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
    """Leaves this process, in its own namespaces, only what *policy* allows to see, and no
    capability. Returns the policy there. Raises `OSError`; the process is unusable then.
    """
    written = view.enter(policy.shown(), policy.listed(), policy.write)
    kernel.drop_capabilities()
    # Its own, and those of all the user's processes, count from here on: the others keep the other
    # half.
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
    """Gives up for good what *policy* does not allow; *apart* is the result for namespaces. Never
    raises for what the system lacks. With *hand_over*, which sends a descriptor, another process
    lists what is rejected. The process has its sockets and descriptors already.
    """
    policy = SandboxPolicy() if policy is None else policy
    return SandboxReport(
        (
            *([] if apart is None else [apart]),
            kernel.drop_privileges(),
            kernel.limit(policy),
            kernel.apply_landlock(policy),
            seccomp.apply(hand_over),
        )
    )


def detect() -> SandboxReport:
    """What `apply` would find here; changes nothing."""
    return SandboxReport(
        (
            kernel.detect_namespaces(),
            kernel.detect_privileges(),
            kernel.detect_limits(),
            kernel.detect_landlock(),
            seccomp.detect(),
        )
    )
