"""Restrictions of a process by system calls that Python has no function for.

They concern privileges, resources, namespaces (namespaces(7)) and, with Landlock, files. The filter
of system calls is `seccomp`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import stat
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.ipc.sandbox import syscalls
from penstock.ipc.sandbox.policy import SandboxPolicy

PIVOT_ROOT: Final = (155, 41)

PR_SET_NO_NEW_PRIVS: Final = 38
PR_GET_NO_NEW_PRIVS: Final = 39


def architecture() -> syscalls.Architecture | None:
    """Architecture of this process; None if it has no table, and on systems other than Linux."""
    if sys.platform != "linux" or sys.maxsize <= 2**32 or sys.byteorder != "little":
        return None
    return syscalls.ARCHITECTURES.get(platform.machine())


def prctl(option: int, *arguments: object) -> int:
    """`prctl(2)`; raises `OSError`."""
    given = [_word(a) for a in (*arguments, *(0,) * (4 - len(arguments)))]
    return _checked(_library().prctl(ctypes.c_int(option), *given))


def syscall(number: int, *arguments: object) -> int:
    """`syscall(2)`; raises `OSError`."""
    return _checked(_library().syscall(ctypes.c_long(number), *map(_word, arguments)))


def mount(source: str, target: str, kind: str, flags: int) -> None:
    """`mount(2)`; raises `OSError`."""
    given = [os.fsencode(text) for text in (source, target, kind)]
    try:
        _checked(_library().mount(*given, ctypes.c_ulong(flags), None))
    except OSError as error:
        raise OSError(error.errno, error.strerror, target) from None


def unmount(target: str, flags: int) -> None:
    """`umount2(2)`; raises `OSError`."""
    _checked(_library().umount2(os.fsencode(target), ctypes.c_int(flags)))


def pivot_root(new: str, old: str) -> None:
    """`pivot_root(2)`; raises `OSError`."""
    found = architecture()
    if found is None:
        raise OSError(errno.ENOSYS, "no table of system calls for this system and processor")
    syscall(PIVOT_ROOT[found.column], os.fsencode(new), os.fsencode(old))


def _word(value: object) -> Any:
    return ctypes.c_ulong(value) if isinstance(value, int) else value


def _library() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    return library


def _checked(result: int) -> int:
    if result == -1:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


PR_SET_PDEATHSIG: Final = 1


def die_with_parent() -> None:
    """As `die_with`, for the current parent."""
    if sys.platform != "win32":
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def die_with(parent: int) -> None:
    """Has the kernel kill this process when *parent* ends (prctl(2), PR_SET_PDEATHSIG)."""
    if sys.platform == "win32":
        return
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)


class Measure(NamedTuple):
    """One barrier: whether it *holds*, and its extent, or why it does not hold."""

    name: str
    holds: bool
    detail: str


class SandboxReport(NamedTuple):
    """The *measures* in the order they were applied."""

    measures: tuple[Measure, ...]

    @property
    def missing(self) -> tuple[Measure, ...]:
        """Measures that do not hold."""
        return tuple(m for m in self.measures if not m.holds)

    def lines(self) -> tuple[tuple[str, str], ...]:
        """Each measure by name, with its result in words."""
        details = (m.detail if m.holds else f"missing: {m.detail}" for m in self.measures)
        return tuple(zip((m.name for m in self.measures), details, strict=True))


PRIVILEGES: Final = "no new privileges"
LIMITS: Final = "resource limits"


def drop_privileges(*, detect: bool = False) -> Measure:
    """Permanently gives programs executed later no more rights than this process has.

    With *detect* it only checks whether the kernel supports that.
    """
    if sys.platform != "linux":
        return Measure(PRIVILEGES, False, "Linux alone has it")
    try:
        prctl(*((PR_GET_NO_NEW_PRIVS,) if detect else (PR_SET_NO_NEW_PRIVS, 1)))
    except OSError as error:
        return Measure(PRIVILEGES, False, f"the kernel refuses: {error}")
    return Measure(PRIVILEGES, True, "available" if detect else "set for good")


def half_of(name: str) -> int | None:
    """Half of this process's limit *name*; None if there is no limit."""
    if sys.platform == "win32":
        return None
    import resource

    kind = getattr(resource, name, None)
    if kind is None:
        return None
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft // 2


def limit(policy: SandboxPolicy | None) -> Measure:
    """Lowers the limits to those of *policy*; raises none. Without one it only detects them."""
    if sys.platform == "win32":
        return Measure(LIMITS, False, "this system has none")
    if policy is None:
        return Measure(LIMITS, True, "available")
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


NAMESPACES: Final = "namespaces"

NEWNS: Final = 0x0002_0000
NEWIPC: Final = 0x0800_0000
NEWUSER: Final = 0x1000_0000
NEWPID: Final = 0x2000_0000
NEWNET: Final = 0x4000_0000

HELD_NAMESPACES: Final = Measure(
    NAMESPACES, True, "users, mounts, processes, System V objects and networks of its own"
)
"""The report on a process in its own namespaces."""

CAPABILITIES_VERSION: Final = 0x2008_0522


def enter_namespaces() -> None:
    """Moves this process, which has one thread, and its later children to new namespaces.

    Raises `OSError` if the kernel refuses; this process is unusable then.
    """
    if sys.platform == "win32":
        raise OSError("namespaces are Linux's")
    user, group = os.geteuid(), os.getegid()
    _checked(_library().unshare(ctypes.c_int(NEWUSER | NEWNS | NEWPID | NEWIPC | NEWNET)))
    # A process without the right to change groups must deny it before it may map groups.
    Path("/proc/self/setgroups").write_text("deny", "ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", "ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", "ascii")


def drop_capabilities() -> None:
    """Drops the capabilities of the namespaces' first process. Raises `OSError`."""
    header = ctypes.create_string_buffer((CAPABILITIES_VERSION).to_bytes(4, "little") + bytes(4), 8)
    _checked(_library().capset(header, bytes(24)))


def detect_namespaces() -> Measure:
    """Whether the kernel allows this user namespaces: tried in another process."""
    if sys.platform != "linux":
        return Measure(NAMESPACES, False, "Linux alone has them")
    import subprocess

    program = f"from {__name__} import enter_namespaces; enter_namespaces()"
    command = [sys.executable, "-P", "-c", program]
    try:
        tried = subprocess.run(  # noqa: S603  # itself
            command, capture_output=True, timeout=30, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Measure(NAMESPACES, False, f"it cannot be tried: {error}")
    if tried.returncode:
        last = tried.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        return Measure(NAMESPACES, False, f"the kernel refuses them: {last}")
    return Measure(NAMESPACES, True, "available")


LANDLOCK: Final = "landlock"

EXECUTE: Final = 1 << 0
WRITE_FILE: Final = 1 << 1
READ_FILE: Final = 1 << 2
READ_DIR: Final = 1 << 3
REMOVE_DIR: Final = 1 << 4
REMOVE_FILE: Final = 1 << 5
MAKE_DIR: Final = 1 << 7
MAKE_REG: Final = 1 << 8
TRUNCATE: Final = 1 << 14
IOCTL_DEV: Final = 1 << 15

FILE_ACCESS: Final = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""Every access to files that the kernel controls, by the interface's first version with it."""

TCP: Final = 0b11
"""Binding and connecting, from version 4 on."""
SCOPES: Final = 0b11
"""Abstract Unix sockets of, and signals to, processes outside, from version 6 on."""

LATER_RIGHTS: Final = {
    3: "truncation",
    4: "TCP",
    5: "ioctl of devices",
    6: "abstract sockets and signals",
}
"""What the interface restricts from these versions on."""

VERSION_FLAG: Final = 1
PATH_BENEATH: Final = 1

RULESET: Final = struct.Struct("=QQQ")
RULE: Final = struct.Struct("=Qi")

OF_FILES: Final = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""Accesses that a rule for a file, rather than a directory, may name."""


def landlock_version() -> int:
    """The version of the kernel's Landlock interface, 0 without Landlock."""
    if sys.platform != "linux":
        return 0
    try:
        return syscall(syscalls.LANDLOCK_CREATE_RULESET, None, 0, VERSION_FLAG)
    except OSError:
        return 0


def detect_landlock() -> Measure:
    """Whether the kernel supports it."""
    found = landlock_version()
    if not found:
        return Measure(LANDLOCK, False, "the kernel has no Landlock, or it is switched off")
    return Measure(LANDLOCK, True, f"available, version {found}")


def apply_landlock(policy: SandboxPolicy) -> Measure:
    """Denies files to the calling thread and threads that it starts later; permanent."""
    found = landlock_version()
    if not found:
        return detect_landlock()
    handled = FILE_ACCESS[max(v for v in FILE_ACCESS if v <= found)]
    attributes = RULESET.pack(handled, TCP if found >= 4 else 0, SCOPES if found >= 6 else 0)
    size = 24 if found >= 6 else 16 if found >= 4 else 8
    threads = 0
    with suppress(OSError):
        threads = len(list(Path("/proc/self/task").iterdir())) - 1
    try:
        ruleset = syscall(syscalls.LANDLOCK_CREATE_RULESET, attributes[:size], size, 0)
    except OSError as error:
        return Measure(LANDLOCK, False, f"the kernel refuses the rules: {error}")
    reading = READ_FILE | READ_DIR
    writing = reading | WRITE_FILE | TRUNCATE | REMOVE_FILE | REMOVE_DIR | MAKE_REG | MAKE_DIR
    try:
        _allow(ruleset, policy.readable(), reading & handled)
        if policy.lists:
            _allow(ruleset, policy.listed(), READ_DIR & handled)
        _allow(ruleset, policy.writable(), writing & handled)
        _allow(ruleset, policy.usable(), (reading | WRITE_FILE | IOCTL_DEV) & handled)
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        syscall(syscalls.LANDLOCK_RESTRICT_SELF, ruleset, 0)
    except OSError as error:
        return Measure(LANDLOCK, False, f"the kernel refuses the rules: {error}")
    finally:
        os.close(ruleset)
    detail = "files read-only, and only what Python and engines need"
    if lacks := [what for since, what in LATER_RIGHTS.items() if found < since]:
        detail += f"; version {found} says nothing of {', '.join(lacks)}"
    if threads:
        detail += f"; {threads} threads ran already and are not restricted"
    return Measure(LANDLOCK, True, detail)


def _allow(ruleset: int, paths: Iterable[str], access: int) -> None:
    if sys.platform != "linux":
        return
    for path in paths:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            given = access if stat.S_ISDIR(os.fstat(fd).st_mode) else access & OF_FILES
            rule = ctypes.create_string_buffer(RULE.pack(given, fd), RULE.size)
            syscall(syscalls.LANDLOCK_ADD_RULE, ruleset, PATH_BENEATH, rule, 0)
        finally:
            os.close(fd)
