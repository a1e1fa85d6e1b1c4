"""A user's process with files, sockets and queues, which starts a hostile driver's and says what is
left of them: a program.

`python -m tests.attacks.victim HOME` prints what the probes came to, and what of the user's has
changed, as JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import struct
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tests.support_programs import run_python

LIBRARY: Final = ctypes.CDLL(None, use_errno=True)
REMOVE: Final = 0


def make_home(home: Path) -> None:
    """A home directory with what is private in it, a directory of the search path, a key of
    Penstock's, and a cache.
    """
    for directory in (".ssh", ".config/penstock", ".cache/penstock", "library"):
        (home / directory).mkdir(parents=True, exist_ok=True)
    for name in (
        ".ssh/id_rsa",
        "document",
        ".profile",
        ".config/penstock/knobs.toml",
        "library/module.py",
    ):
        path = home / name
        path.write_text("# private\n")
        path.chmod(0o600)
    with suppress(OSError):
        os.setxattr(home / "document", "user.mine", b"kept")
    (home / "link").symlink_to("/secret/target")
    home.chmod(0o700)
    sealed = Path(os.environ["PENSTOCK_STATE_DIR"], "seals")
    sealed.mkdir(parents=True, mode=0o700)
    key = sealed / "key"
    key.write_bytes(bytes(32))
    key.chmod(0o600)


def make_queues() -> dict[str, int]:
    key = 0x5050_0000 + os.getpid() % 10_000
    message = struct.pack("l", 1) + b"private"
    made = {
        "key": key,
        "segment": LIBRARY.shmget(key, 4096, 0o1600),
        "queue": LIBRARY.msgget(key, 0o1600),
        "semaphore": LIBRARY.semget(key, 1, 0o1600),
    }
    LIBRARY.msgsnd(made["queue"], message, 7, 0)
    return made


def remove_queues(made: dict[str, int]) -> list[str]:
    """Which of them are not as they were."""
    changed = []
    received = ctypes.create_string_buffer(64)
    if (
        LIBRARY.msgrcv(made["queue"], received, 50, 0, 0o4000) != 7
        or received.raw[8:15] != b"private"
    ):
        changed.append("the queue")
    if LIBRARY.semctl(made["semaphore"], 0, 12):
        changed.append("the semaphore")
    if LIBRARY.shmctl(made["segment"], REMOVE, None):
        changed.append("the segment")
    LIBRARY.msgctl(made["queue"], REMOVE, None)
    LIBRARY.semctl(made["semaphore"], 0, REMOVE)
    return changed


def listen(address: str | bytes, heard: list[bytes]) -> None:
    """Keeps whatever is sent to *address*."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(address)

    def receive() -> None:
        while True:
            heard.append(listener.recvmsg(100, 1000)[0])

    threading.Thread(target=receive, daemon=True).start()


def state(home: Path) -> dict[str, Any]:
    """All of the user's that a driver could change."""
    files = {}
    for path in sorted(home.rglob("*")):
        found = path.lstat()
        content = path.read_bytes().hex() if path.is_file() and not path.is_symlink() else ""
        times = (found.st_mtime_ns, found.st_ctime_ns)
        files[str(path.relative_to(home))] = (found.st_mode, found.st_size, *times, content)
    return {
        "files": files,
        "home": home.stat().st_mode,
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "processors": sorted(os.sched_getaffinity(0)),
        "scheduler": os.sched_getscheduler(0),
    }


def main() -> None:
    home = Path(sys.argv[1])
    make_home(home)
    heard: list[bytes] = []
    queues = make_queues()
    try:
        listen(str(home / "datagrams"), heard)
        listen(b"\0penstock-probe", heard)
        before = state(home)
        done = run_python(
            "-m",
            "tests.attacks.probes",
            home,
            str(os.getpid()),
            json.dumps(queues),
            env={**os.environ, "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{home / 'library'}"},
        )
        after = state(home)
    finally:
        changed = remove_queues(queues)
    changed += [what for what in before if before[what] != after[what]]
    told = json.loads(done.stdout) if done.returncode == 0 else {}
    sys.stdout.write(
        json.dumps(
            {
                **told,
                "ended": done.returncode,
                "said": done.stderr[-4000:],
                "changed": changed,
                "heard": len(heard),
            }
        )
    )


if __name__ == "__main__":
    main()
