"""Unix sockets of host processes: those of one user, and services of an administrator.

Host processes of a user listen in `hosts/MACHINE/` of the state directory. MACHINE identifies the
running kernel and this process's namespaces, so machines that share a home directory do not share
sockets.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from penstock import knobs, vulkan
from penstock.distribution import BY_THE_PROGRAM
from penstock.errors import BadSetting, DeviceUnavailable, InputError, Unreadable
from penstock.ipc.sandbox.policy import empty
from penstock.ipc.system import LINUX_ONLY, connect_within, current_user, peer
from penstock.sealed.locks import locked
from penstock.sealed.places import make_private_directory, state_directory

NAME: Final = "hosts"
LOCK: Final = "lock"

MOST_SOCKETS: Final = 64
"""Number of sockets in a directory from which on unused sockets are removed."""

MOST_DAYS: Final = 30
"""Directories of other machines, and from before this system's start, are removed after this."""

LOCK_SECONDS: Final = 2.0
"""Seconds that other clients have to start processes, one after the other."""

BACKLOG: Final = 128

_NAMESPACES: Final = ("pid", "mnt", "net", "user")


class Place(NamedTuple):
    """The driver of one entry point, *name* = *value*, of *origin* (`penstock.distribution`)."""

    name: str
    value: str
    origin: str = BY_THE_PROGRAM


def services() -> dict[str, str]:
    """The sockets of services by driver (the knob `services`). Raises `BadSetting`."""
    found = {}
    for part in filter(None, map(str.strip, knobs.services().split(","))):
        name, equals, path = map(str.strip, part.partition("="))
        if not equals or not path.startswith("/"):
            raise BadSetting(f"the knob services has {part!r}: NAME=/PATH/OF/A/SOCKET is needed")
        found[name] = path
    return found


class AddressInUse(Exception):
    """Another process listens at the address, or is about to."""


@contextmanager
def socket_directory() -> Iterator[SocketDirectory | None]:
    """The directory of this user and machine; None if there is none: a host then has one client."""
    try:
        directory = Path(state_directory(), NAME, _machine())
        if not directory.is_dir():
            make_private_directory(directory.parent)
            _remove_old(directory.parent)
        make_private_directory(directory)
        fd = _open_directory(directory)
    except (OSError, Unreadable, InputError):
        yield None
        return
    try:
        yield SocketDirectory(fd)
    finally:
        os.close(fd)


class SocketDirectory:
    """The open directory *fd*. Names are those of `starting.address_of`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def connect(self, name: str, seconds: float) -> socket.socket | None:
        """A connection to the host that listens as *name*; None if none does.

        Raises `TimeoutError` if it does not accept in time, and `OSError`.
        """
        sock = _unix_socket()
        with ExitStack() as unused:
            unused.callback(sock.close)
            try:
                connect_within(sock, self._path(name), seconds)
            except (FileNotFoundError, ConnectionRefusedError):
                return None
            unused.pop_all()
        return sock

    def listen(self, name: str) -> socket.socket:
        """A socket that listens as *name*; replaces an abandoned one.

        Raises `AddressInUse` if a host listens, or is being started, and `OSError`.
        """
        with self._alone():
            if self._is_taken(name):
                raise AddressInUse
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._fd)
            self._make_room()
            listener = _unix_socket()
            try:
                listener.bind(self._path(name))
                listener.listen(BACKLOG)
            except BaseException:
                listener.close()
                raise
        return listener

    def _is_taken(self, name: str) -> bool:
        try:
            known = self.connect(name, 0.0)
        except TimeoutError:
            return True
        if known is not None:
            known.close()
        return known is not None

    def _path(self, name: str) -> str:
        # A socket's address must be shorter than a path may be.
        return f"/proc/self/fd/{self._fd}/{name}"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if sys.platform == "win32":
            raise OSError(errno.ENOSYS, LINUX_ONLY)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(LOCK, flags, 0o600, dir_fd=self._fd)
        try:
            with locked(lock, exclusive=True, timeout=LOCK_SECONDS) as held:
                if not held:
                    raise AddressInUse
                yield
        except Unreadable as error:
            raise OSError(str(error)) from error
        finally:
            os.close(lock)

    def _make_room(self) -> None:
        """Removes sockets without a listening process, if there are many."""
        names = [name for name in os.listdir(self._fd) if name != LOCK]
        for name in names if len(names) > MOST_SOCKETS else ():
            with suppress(OSError):
                if not self._is_taken(name):
                    os.unlink(name, dir_fd=self._fd)


def _unix_socket() -> socket.socket:
    if sys.platform == "win32":
        raise OSError(errno.ENOSYS, LINUX_ONLY)
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def _open_directory(path: Path) -> int:
    if sys.platform == "win32":
        raise OSError(errno.ENOSYS, LINUX_ONLY)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _machine() -> str:
    """The running kernel and the namespaces of this process, in digits."""
    parts = [Path("/proc/sys/kernel/random/boot_id").read_text("ascii")]
    parts += [os.readlink(f"/proc/self/ns/{kind}") for kind in _NAMESPACES]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _remove_old(directory: Path) -> None:
    before = time.time() - MOST_DAYS * 86_400
    for other in directory.iterdir():
        with suppress(OSError):
            if other.lstat().st_mtime > before:
                continue
            fd = _open_directory(other)
            try:
                if empty(fd):
                    other.rmdir()
            finally:
                os.close(fd)


SOCKET_MODE: Final = 0o666
"""Any process that reaches the socket may connect. Its directory and `--users` restrict that."""

CONNECT_SECONDS: Final = 10.0
"""Seconds that a service may be too busy to accept a connection."""

KEPT: Final = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "LD_LIBRARY_PATH"),
    *vulkan.VARIABLES,
)
KEPT_PREFIXES: Final = ("LC_", "XDG_", "PENSTOCK_", "PYTHON", "OMP_", "OPENBLAS_", "MKL_")


def prepare() -> None:
    """Closes inherited descriptors but 0 to 2, and drops variables that no driver needs."""
    os.closerange(3, 1 << 16)
    for name in list(os.environ):
        if name not in KEPT and not name.startswith(KEPT_PREFIXES):
            del os.environ[name]


def listen(path: str) -> int:
    """The descriptor of a socket that listens at *path*. Replaces an abandoned socket.

    Raises `OSError` if one is in use, for any other file, and if others can write the directory.
    """
    reason = untrusted(Path(path), current_user())
    if reason is not None:
        raise PermissionError(reason)
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(f"{path} is no socket")
        with _unix_socket() as known:
            try:
                known.connect(path)
            except ConnectionRefusedError:
                Path(path).unlink()
            else:
                raise OSError(f"{path}: another process listens there")
    listener = _unix_socket()
    listener.bind(path)
    Path(path).chmod(SOCKET_MODE)
    listener.listen()
    return listener.detach()


def connect_service(name: str, path: str) -> socket.socket:
    """A connection to the service of driver *name* at *path*.

    Raises `DeviceUnavailable` if none listens, or the listener may be an impostor: it must own the
    socket, in a directory that only it or root can write.
    """
    with ExitStack() as unused:
        try:
            sock = _unix_socket()
            unused.callback(sock.close)
            connect_within(sock, path, CONNECT_SECONDS)
            _, user = peer(sock)
            reason = untrusted(Path(path), user)
            if reason is None and os.lstat(path).st_uid != user:
                reason = f"user {user} listens at {path}, which belongs to another"
            if reason is not None:
                raise DeviceUnavailable(f"driver {name}: {reason}")
        except OSError as error:
            raise DeviceUnavailable(f"driver {name}: its service at {path}: {error}") from error
        unused.pop_all()
    return sock


def untrusted(path: Path, user: int) -> str | None:
    """Why a socket at *path* may belong to another user than *user* or root."""
    for depth, directory in enumerate(path.absolute().parents):
        status = directory.stat()
        if status.st_uid not in {0, user}:
            return f"directory {directory} belongs to user {status.st_uid}"
        # In a directory such as /tmp no user can rename another user's file, but any user can
        # create it first.
        is_kept = depth > 0 and status.st_mode & stat.S_ISVTX
        if status.st_mode & 0o022 and not is_kept:
            return f"directory {directory} can be written by others"
    return None
