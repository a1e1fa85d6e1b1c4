"""What a hostile driver tries from inside its sandbox, and what came of each: a program.

`python -m tests.attacks.probes HOME PARENT` gives up what a driver's process gives up, tries
everything against the files of HOME and the process PARENT, and prints for each probe whether it
was refused, as JSON.
"""

# The probes name system calls.
# ruff: noqa: PTH101, PTH102, PTH104, PTH108, PTH115, PTH116, PTH120, PTH123, PTH208, PTH211

from __future__ import annotations

import array
import ctypes
import fcntl
import json
import os
import platform
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

from penstock import knobs
from penstock.ipc import sandbox
from penstock.ipc.host.broker import launch, status_of

Probe = Callable[[], object]

LIBRARY: Final = ctypes.CDLL(None, use_errno=True)
LIBRARY.syscall.restype = ctypes.c_long

AT_FDCWD: Final = -100
AARCH64: Final = platform.machine() == "aarch64"


def call(x86_64: int, aarch64: int | None, *arguments: object) -> Probe:
    """A system call by its numbers. Raises `OSError`; a call that an architecture has not is
    refused there.
    """

    def made() -> int:
        number = aarch64 if AARCH64 else x86_64
        if number is None:
            raise OSError("no such call here")
        given = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
        result = int(LIBRARY.syscall(ctypes.c_long(number), *given))
        if result < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        return result

    return made


def read(path: object, nbytes: int = 40) -> bytes:
    with open(str(path), "rb") as file:
        return file.read(nbytes)


def append(path: object) -> int:
    with open(str(path), "ab") as file:
        return file.write(b"x")


def of_files(home: Path) -> dict[str, Probe]:
    """Reading, changing and making files that are not the driver's."""
    key, document = home / ".ssh" / "id_rsa", home / "document"
    own = os.environ.get("TMPDIR", "")

    def watched() -> object:
        return call(254, 27, call(294, 26, 0)(), bytes(home), 0xFFF)()

    return {
        "read a private file": lambda: read(key),
        "read by another name": lambda: read(f"/proc/self/root{key}"),
        "list a home": lambda: os.listdir(home),
        "list /var": lambda: os.listdir("/var"),
        "list /proc": lambda: os.listdir("/proc"),
        "append to a file": lambda: append(home / ".profile"),
        "make a file": lambda: append(home / "new"),
        "make a file in /tmp": lambda: append("/tmp/penstock-probe"),  # refused
        "make shared memory": lambda: append("/dev/shm/penstock-probe"),  # refused
        "truncate": lambda: os.truncate(document, 0),
        "make a directory": lambda: os.mkdir(home / "directory"),
        "make a symbolic link": lambda: os.symlink("/etc/passwd", home / "symbolic"),
        "link into scratch": lambda: os.link(document, f"{own}/linked"),
        "rename": lambda: os.rename(document, home / "renamed"),
        "remove": lambda: os.unlink(document),
        "see the size of a private file": lambda: os.stat(key),
        "read a link": lambda: os.readlink(home / "link"),
        "read the machine's name": lambda: read("/etc/hostname"),
        "list the cache": lambda: os.listdir(home / ".cache" / "penstock"),
        "watch a private directory": watched,
    }


def of_attributes(home: Path) -> dict[str, Probe]:
    """Modes, owners, times and attributes, by path and by a descriptor for reading."""
    key, document = home / ".ssh" / "id_rsa", home / "document"
    entries = ((1, 7), (4, 7), (0x20, 7))
    listed = struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", tag, rights, 0xFFFFFFFF) for tag, rights in entries
    )

    def set_at(path: Path, name: bytes, value: bytes) -> object:
        content = ctypes.create_string_buffer(value, len(value))
        told = struct.pack("<QII", ctypes.addressof(content), len(value), 0)
        return call(463, 463, AT_FDCWD, bytes(path), 0, name, told, len(told))()

    def by_descriptor(path: str, change: Callable[[int], object]) -> object:
        fd = os.open(path, os.O_RDONLY)
        try:
            return change(fd)
        finally:
            os.close(fd)

    readable = str(home / "library" / "module.py")
    return {
        "chmod": lambda: os.chmod(key, 0o644),
        "fchmodat2": call(452, 452, AT_FDCWD, bytes(key), 0o644, 0),
        "fchmod of a file on the search path": lambda: by_descriptor(
            readable, lambda fd: os.fchmod(fd, 0o666)
        ),
        "fchmod of a directory on the search path": lambda: by_descriptor(
            os.path.dirname(readable), lambda fd: os.fchmod(fd, 0o777)
        ),
        "chown": lambda: os.chown(key, os.getuid(), os.getgid()),
        "setxattr": lambda: os.setxattr(key, "user.probe", b"1"),
        "setxattrat": lambda: set_at(key, b"user.probe", b"1"),
        "an access list for a file": lambda: set_at(key, b"system.posix_acl_access", listed),
        "an access list for a home": lambda: set_at(home, b"system.posix_acl_access", listed),
        "removexattr": lambda: os.removexattr(document, "user.mine"),
        "removexattrat": call(466, 466, AT_FDCWD, bytes(document), 0, b"user.mine"),
        "getxattr": lambda: os.getxattr(document, "user.mine"),
        "getxattrat": call(464, 464, AT_FDCWD, bytes(document), 0, b"user.mine", bytes(16), 16),
        "file_setattr": call(
            469, 469, AT_FDCWD, bytes(document), struct.pack("<Q4I", 0x80, 0, 0, 0, 0), 24, 0
        ),
        "flags by ioctl": lambda: by_descriptor(
            readable, lambda fd: fcntl.ioctl(fd, 0x40086602, struct.pack("q", 0x40))
        ),
        "utimensat": lambda: os.utime(key, (1, 1)),
        "futimens": lambda: by_descriptor(readable, lambda fd: os.utime(fd, (1, 1))),
    }


def of_state(home: Path) -> dict[str, Probe]:
    """The keys and registries of Penstock."""
    state = Path(os.environ.get("PENSTOCK_STATE_DIR", ""))
    settings = home / ".config" / "penstock" / "knobs.toml"
    return {
        "list the state directory": lambda: os.listdir(state),
        "list the registries": lambda: os.listdir(state / "seals"),
        "read the key": lambda: read(state / "seals" / "key"),
        "read verdicts": lambda: os.listdir(state / "driver-verdicts"),
        "make a registry": lambda: append(state / "seals" / "other.registry"),
        "change the settings": lambda: append(settings),
    }


def of_sockets(home: Path) -> dict[str, Probe]:
    """Talking to anybody but clients."""
    families = {
        "INET": 2,
        "INET6": 10,
        "UNIX": 1,
        "NETLINK": 16,
        "VSOCK": 40,
        "PACKET": 17,
        "ALG": 38,
    }

    def pair() -> socket.socket:
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0]

    def handed() -> object:
        loot = os.memfd_create("loot")
        content = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [loot]))]
        return pair().sendmsg([b"x"], content, 0, str(home / "datagrams"))

    def sent(kind: int) -> object:
        return socket.socketpair(socket.AF_UNIX, kind)[0].sendto(b"x", str(home / "datagrams"))

    return {
        **{
            f"a socket of {name}": lambda family=family: socket.socket(family, socket.SOCK_DGRAM)  # type: ignore[misc]
            for name, family in families.items()
        },
        "send to a path": lambda: pair().sendto(b"x", str(home / "datagrams")),
        "send to an abstract address": lambda: pair().sendto(b"x", b"\0penstock-probe"),
        "hand over a descriptor": handed,
        "send to a path by a stream": lambda: sent(socket.SOCK_STREAM),
        "send to a path by packets": lambda: sent(socket.SOCK_SEQPACKET),
        "connect": lambda: socket.socketpair()[0].connect(str(home / "datagrams")),
        "bind": lambda: socket.socketpair()[0].bind("\0penstock-probe-too"),
    }


def of_processes(parent: int) -> dict[str, Probe]:
    """Ending, tracing, slowing and listing processes, and starting some."""

    def by_notice() -> object:
        ours, theirs = socket.socketpair()
        fcntl.fcntl(ours, fcntl.F_SETOWN, parent)
        fcntl.fcntl(ours, 10, signal.SIGKILL)
        fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        theirs.send(b"x")
        time.sleep(0.2)
        return "sent"

    return {
        "kill(0)": lambda: os.kill(parent, 0),
        "kill(9)": lambda: os.kill(parent, signal.SIGKILL),
        "kill all": lambda: os.kill(-1, 0),
        "tgkill": call(234, 131, parent, parent, 9),
        "tkill": call(200, 130, parent, 9),
        "rt_sigqueueinfo": call(129, 138, parent, 9, bytes(128)),
        "pidfd_open": lambda: os.pidfd_open(parent),
        "a signal by F_SETOWN": by_notice,
        "prlimit": call(302, 261, parent, 7, None, bytes(16)),
        "ptrace": call(101, 117, 16, parent, 0, 0),
        "process_vm_readv": call(310, 270, parent, 0, 0, 0, 0, 0),
        "process_madvise": call(440, 440, 3, 0, 0, 0, 0),
        "read its memory": lambda: read(f"/proc/{parent}/mem"),
        "read its environment": lambda: read(f"/proc/{parent}/environ"),
        "read its command": lambda: read(f"/proc/{parent}/cmdline"),
        "fork": lambda: os.fork() or os._exit(0),
        "start a program": lambda: os.posix_spawn("/bin/true", ["true"], {}),
        "become a program": lambda: os.execve("/bin/true", ["true"], {}),
        "a nicer parent": lambda: os.setpriority(os.PRIO_PROCESS, parent, 19),
        "nicer processes of the user": lambda: os.setpriority(os.PRIO_USER, os.getuid(), 10),
        "a parent on one processor": lambda: os.sched_setaffinity(parent, {0}),
        "an idle parent": lambda: os.sched_setscheduler(parent, os.SCHED_IDLE, os.sched_param(0)),
        "idle input and output": call(251, 30, 1, parent, 3 << 13),
        "its robust list": call(274, 100, parent, bytes(8), bytes(8)),
        "whether a process is there": lambda: os.sched_getscheduler(parent),
        "its session": lambda: os.getsid(parent),
        "its processors": lambda: os.sched_getaffinity(parent),
        "its priority": lambda: os.getpriority(os.PRIO_PROCESS, parent),
        "share a core's schedule": call(157, 167, 62, 2, parent, 0, 0),
        "a namespace": call(272, 97, 0x1000_0000),
        "no signal when the parent ends": call(157, 167, 1, 0),
    }


def of_queues(given: dict[str, int]) -> dict[str, Probe]:
    """System V's queues, semaphores and segments of the user."""
    message = struct.pack("l", 5) + b"forged"
    return {
        "shmget": call(29, 194, given["key"], 0, 0),
        "shmat": call(30, 196, given["segment"], 0, 0),
        "remove a segment": call(31, 195, given["segment"], 0, None),
        "list segments": call(31, 195, 0, 14, bytes(256)),
        "msgget": call(68, 186, given["key"], 0),
        "receive a message": call(70, 188, given["queue"], bytes(256), 200, 0, 0o4000),
        "send a message": call(69, 189, given["queue"], message, 6, 0o4000),
        "remove a queue": call(71, 187, given["queue"], 0, None),
        "semget": call(64, 190, given["key"], 0, 0),
        "set a semaphore": call(66, 191, given["semaphore"], 0, 16, 77),
        "raise a semaphore": call(65, 193, given["semaphore"], struct.pack("Hhh", 0, 1, 0), 1),
        "mq_open": call(240, 180, b"probe", 0x42, 0o600, 0),
    }


def of_kernel() -> dict[str, Probe]:
    """What else the kernel offers."""
    return {
        "userfaultfd": call(323, 282, 0),
        "io_uring": call(425, 425, 1, bytes(256)),
        "bpf": call(321, 280, 0, 0, 0),
        "perf_event_open": call(298, 241, 0, 0, 0, 0, 0),
        "keyctl": call(250, 219, 0, 0, 0),
        "open_tree": call(428, 428, AT_FDCWD, b"/", 0),
        "open_tree_attr": call(467, 467, AT_FDCWD, b"/", 0, None, 0),
        "memfd_secret": call(447, 447, 0),
        "mount": call(165, 40, b"none", b"/mnt", b"tmpfs", 0, None),
        "sync": call(162, 81),
        "a call of tomorrow": call(700, 700),
        "type on the terminal": lambda: fcntl.ioctl(0, 0x5412, b"x"),
        **{name: lambda look=look: look() for name, look in of_the_machine().items()},  # type: ignore[misc]
        "where cores go": lambda: read("/proc/sys/kernel/core_pattern"),
    }


def of_the_machine() -> dict[str, Callable[[], str]]:
    """What shows whoever has a view, a network and processes of his own nothing but these."""
    return {
        "addresses of network devices": lambda: "\n".join(
            [p.read_text() for p in Path("/sys/class/net").glob("*/address")]
        ),
        "connections of the machine": lambda: Path("/proc/self/net/tcp").read_text(),
        "sockets of the machine": lambda: Path("/proc/self/net/unix").read_text(),
        "mounts of the machine": lambda: Path("/proc/self/mountinfo").read_text(),
        "users of the machine": lambda: Path("/etc/passwd").read_text(),
    }


def of_itself() -> dict[str, Probe]:
    """What changes and reads nothing outside of the process and its scratch."""
    return {
        "read Python": lambda: read(os.__file__),
        "write scratch": lambda: append(Path(os.environ.get("TMPDIR", ""), "own")),
        "start a thread": lambda: threading.Thread(target=int).start(),
        "share memory": lambda: os.memfd_create("own"),
        "be nicer": lambda: os.setpriority(
            os.PRIO_PROCESS, 0, min(19, os.getpriority(os.PRIO_PROCESS, 0) + 1)
        ),
        "see its own status": lambda: read("/proc/self/status"),
    }


def outcome(probe: Probe) -> str:
    """`done`, or by what it was refused."""
    try:
        probe()
    except (OSError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def shown(look: Callable[[], str]) -> str:
    try:
        return look()
    except OSError as error:
        return f"{type(error).__name__}: {error}"


def main() -> None:
    def drive(apart: sandbox.Measure, ready: Callable[[], None]) -> NoReturn:
        policy = sandbox.host_policy()
        if apart.holds:
            policy = sandbox.enter_view(policy)
        ready()
        probe_all(sandbox.apply(policy, apart))
        sys.stdout.flush()
        os._exit(0)

    raise SystemExit(os.waitstatus_to_exitcode(status_of(launch(drive, apart=knobs.namespaces()))))


def probe_all(report: sandbox.SandboxReport) -> None:
    """Prints what became of every probe."""
    home, parent = Path(sys.argv[1]), int(sys.argv[2])
    given: dict[str, int] = json.loads(sys.argv[3])
    probes = {
        **of_files(home),
        **of_attributes(home),
        **of_state(home),
        **of_sockets(home),
        **of_processes(parent),
        **of_queues(given),
        **of_kernel(),
        **of_itself(),
    }
    found: dict[str, Any] = {
        "report": {m.name: [m.holds, m.detail] for m in report.measures},
        "probes": {name: outcome(probe) for name, probe in probes.items()},
        "shown": {name: shown(look) for name, look in of_the_machine().items()},
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
