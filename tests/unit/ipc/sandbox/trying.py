"""A program that gives up what a driver's process does not need, tries what it must not do, and
says what came of it.

Its arguments are a file to read, a file to write, a directory it may write to, the port of a
server, and the process that started it.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import platform
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from penstock.ipc import sandbox
from penstock.ipc.sandbox import kernel

MEMFD = 7
LIBRARY = ctypes.CDLL(None, use_errno=True)


def outcome(action: Callable[[], object]) -> str:
    """`done`, or the name of the error."""
    try:
        action()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    except RuntimeError as error:
        return str(error)
    return "done"


def call(name: str, *arguments: object) -> Callable[[], int]:
    """A C library's function that returns -1 with `errno`."""

    def made() -> int:
        ctypes.set_errno(0)
        result = int(getattr(LIBRARY, name)(*arguments))
        if result == -1:
            raise OSError(ctypes.get_errno(), name)
        return result

    return made


def in_32_bits() -> int:
    """`getpid` by the 32-bit instruction set's way into the kernel: the error that it gives."""
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    # mov eax, 20 (getpid); int 0x80; ret
    code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    result = int(function())
    if result < 0:
        raise OSError(-result, "int 0x80")
    return result


def thread() -> None:
    done: list[int] = []
    started = threading.Thread(target=done.append, args=(1,))
    started.start()
    started.join()
    if done != [1]:
        raise RuntimeError("no thread")


def shared_memory() -> None:
    fd = os.memfd_create("trying")
    os.ftruncate(fd, 4096)
    with mmap.mmap(fd, 4096) as region:
        region[0] = 1
    os.close(fd)


FOREIGN: dict[str, Callable[[], object]] = {
    "a 32-bit call": in_32_bits,
    "an x32 call": lambda: kernel.syscall(0x40000000 + 39),
}
"""What ends a process: each is tried in one of its own."""


def main() -> None:
    if sys.argv[1] in FOREIGN:
        sandbox.apply(sandbox.SandboxPolicy())
        sys.stdout.write(outcome(FOREIGN[sys.argv[1]]))
        return
    readable, writable, own, port, parent = sys.argv[1:]
    policy = sandbox.SandboxPolicy(write=(own,), max_descriptors=64)
    kept = os.open(readable, os.O_RDONLY)
    report = sandbox.apply(policy)
    ours, theirs = socket.socketpair() if hasattr(socket, "socketpair") else (None, None)
    tries: dict[str, Callable[[], object]] = {
        "read a file": lambda: Path(readable).read_bytes(),
        "list a directory": lambda: list(Path(readable).parent.iterdir()),
        "write a file": lambda: Path(writable).write_bytes(b"altered"),
        "make a file": lambda: Path(writable + ".new").touch(),
        "remove a file": lambda: Path(writable).unlink(),
        "truncate a file": lambda: os.truncate(writable, 0),
        "make a link": lambda: Path(own, "link").symlink_to(readable),
        "change a mode": lambda: Path(writable).chmod(0o777),
        "change an owner": lambda: os.chown(writable, os.getuid(), os.getgid()),
        "connect": lambda: socket.create_connection(("127.0.0.1", int(port))),
        "make a socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "execute a program": lambda: os.execv(sys.executable, [sys.executable, "-c", "0"]),
        "start a process": lambda: os.posix_spawn(sys.executable, [sys.executable, "-c", "0"], {}),
        "fork": lambda: os.fork() or os._exit(0),
        "trace a process": call("ptrace", 16, int(parent), 0, 0),
        "read a process": call("process_vm_readv", int(parent), None, 0, None, 0, 0),
        "signal a process": lambda: os.kill(int(parent), 0),
        "limit a process": call("prlimit", int(parent), 7, None, None),
        "mount": call("mount", b"none", b"/mnt", b"tmpfs", 0, None),
        "another namespace": call("unshare", 0x10000000),
        "another user": lambda: os.setuid(os.getuid()),
        "a kernel program": lambda: kernel.syscall(321 if kernel_is_x86() else 280, 0, 0, 0),
        "an io_uring": lambda: kernel.syscall(425, 1, 0),
        "type on the terminal": call("ioctl", 0, 0x5412, b"x"),
        "a call that nobody knows": lambda: kernel.syscall(5000),
        "core dumps": core_dumps,
        "more descriptors": lambda: [os.dup(kept) for _ in range(100)],
    }
    allowed: dict[str, Callable[[], object]] = {
        "read what was open": lambda: os.pread(kept, 1, 0),
        "read Python": lambda: Path(os.__file__).read_bytes(),
        "write its own directory": lambda: Path(own, "file").write_bytes(b"x"),
        "remove what it wrote": lambda: Path(own, "file").unlink(),
        "use a null device": lambda: Path("/dev/null").write_bytes(b"x"),
        "start a thread": thread,
        "share memory": shared_memory,
        "signal itself": lambda: os.kill(os.getpid(), 0),
        "know its processors": lambda: os.sched_getaffinity(0),
        "keep to a processor": lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),
        "be slower": lambda: os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0)),
        "know its limits": call("prlimit", 0, MEMFD, None, None),
        "answer a client": lambda: ours and theirs and (ours.send(b"x"), theirs.recv(1)),
        "raise": lambda: signal.raise_signal(signal.SIGWINCH),
    }
    held = in_a_thread(lambda: outcome(tries["read a file"]))
    found = {
        "report": {m.name: [m.holds, m.detail] for m in report.measures},
        "allowed": {name: outcome(action) for name, action in allowed.items()},
        "tried": {name: outcome(action) for name, action in tries.items()},
        "in a thread": held,
    }
    sys.stdout.write(json.dumps(found))


def core_dumps() -> None:
    import resource

    if resource.getrlimit(resource.RLIMIT_CORE) == (0, 0):
        raise RuntimeError("none")


def in_a_thread(action: Callable[[], str]) -> str:
    found: list[str] = []
    started = threading.Thread(target=lambda: found.append(action()))
    started.start()
    started.join()
    return found[0]


def kernel_is_x86() -> bool:
    return platform.machine() == "x86_64"


if __name__ == "__main__":
    main()
