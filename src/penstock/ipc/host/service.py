"""A host as a system service: the socket that an administrator names, and who may be believed to
listen there.
"""

from __future__ import annotations

import os
import socket
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.errors import DeviceUnavailable
from penstock.ipc.linux import connect_within, peer

SOCKET_MODE: Final = 0o666
"""Whoever reaches the socket may connect: the directory that it is in, and `--users`, say who."""

CONNECT_SECONDS: Final = 10.0
"""How long a service may have no room for another connection."""

KEPT: Final = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "LD_LIBRARY_PATH")
KEPT_PREFIXES: Final = ("LC_", "XDG_", "PENSTOCK_", "PYTHON", "OMP_", "OPENBLAS_", "MKL_")


def prepare() -> None:
    """Closes what was inherited but the three standard descriptors, and forgets the environment but
    for what a driver needs.
    """
    os.closerange(3, 1 << 16)
    for name in list(os.environ):
        if name not in KEPT and not name.startswith(KEPT_PREFIXES):
            del os.environ[name]


def listen(path: str) -> int:
    """The descriptor of a socket that listens at *path*, in the place of one that nobody listens at
    any more.

    Raises `OSError` where somebody does, where a file that is no socket lies there, and where the
    directory is one in which others could put a socket of their own.
    """
    if sys.platform == "win32":
        raise OSError("a service needs Unix sockets")
    reason = untrusted(Path(path), os.geteuid())
    if reason is not None:
        raise PermissionError(reason)
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(f"{path} is no socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as known:
            try:
                known.connect(path)
            except ConnectionRefusedError:
                Path(path).unlink()
            else:
                raise OSError(f"{path}: somebody listens there")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    Path(path).chmod(SOCKET_MODE)
    listener.listen()
    return listener.detach()


def connect_service(name: str, path: str) -> socket.socket:
    """A connection to the service of driver *name* at *path*.

    Raises `DeviceUnavailable` where none listens, and where who listens is not surely the one that
    the path was given for: the socket's owner, in a directory that nobody else but root can write.
    """
    if sys.platform == "win32":
        raise DeviceUnavailable(f"driver {name}: a service needs Unix sockets")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connect_within(sock, path, CONNECT_SECONDS)
        _, user = peer(sock)
        reason = untrusted(Path(path), user)
        if reason is None and os.lstat(path).st_uid != user:
            reason = f"user {user} listens at {path}, which belongs to another"
        if reason is not None:
            raise DeviceUnavailable(f"driver {name}: {reason}")
    except OSError as error:
        sock.close()
        raise DeviceUnavailable(f"driver {name}: its service at {path}: {error}") from error
    except BaseException:
        sock.close()
        raise
    return sock


def untrusted(path: Path, user: int) -> str | None:
    """Why a socket at *path* may be somebody else's than *user*'s or root's."""
    for depth, directory in enumerate(path.absolute().parents):
        status = directory.stat()
        if status.st_uid not in {0, user}:
            return f"directory {directory} belongs to user {status.st_uid}"
        # In a directory such as /tmp nobody can rename what is another's, but anybody can be there
        # first.
        is_kept = depth > 0 and status.st_mode & stat.S_ISVTX
        if status.st_mode & 0o022 and not is_kept:
            return f"directory {directory} can be written by others"
    return None
