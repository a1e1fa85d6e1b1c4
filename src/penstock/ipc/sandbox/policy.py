"""The rights of a sandboxed host process, and its temporary directory."""

from __future__ import annotations

import logging
import os
import sys
import sysconfig
from contextlib import suppress
from importlib.machinery import all_suffixes
from itertools import count, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock import vulkan
from penstock.errors import PenstockError, Unreadable
from penstock.knobs import absolute, cache_dir, settings_path, user_directory
from penstock.sealed.places import make_private_directory, shader_directory, state_directory

MOST_ENTRIES: Final = 20_000
"""Most files and directories that one call removes."""


def empty(directory: int, most: int = MOST_ENTRIES) -> bool:
    """Removes the content of a directory of this user, by its descriptor *directory*.

    Returns whether it is empty. Follows no link and opens no file. Nested directories are moved up,
    so depth and path lengths do not matter. No other process may change it meanwhile.
    """
    if sys.platform == "win32":
        raise OSError("descriptors of directories are Unix's")
    left, numbers = most, count()
    while left > 0:
        before = left
        with os.scandir(directory) as entries:
            for entry in entries:
                left -= _remove(directory, entry, numbers, left)
                if left <= 0:
                    break
        if left == before:
            # It is empty, or its entries cannot be removed.
            break
    with os.scandir(directory) as entries:
        return next(entries, None) is None


def _remove(directory: int, entry: os.DirEntry[str], numbers: count[int], most: int) -> int:
    """Removes *entry* of *directory*. Returns how many entries were removed or moved."""
    if sys.platform == "win32":
        raise OSError("descriptors of directories are Unix's")
    if not entry.is_dir(follow_symlinks=False):
        return _unlink(directory, entry.name)
    with suppress(OSError):
        os.rmdir(entry.name, dir_fd=directory)
        return 1
    # A directory without permissions cannot be opened.
    with suppress(OSError):
        os.chmod(entry.name, 0o700, dir_fd=directory)
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        inner = os.open(entry.name, flags, dir_fd=directory)
    except OSError:
        return 0
    done = 0
    try:
        with os.scandir(inner) as below:
            for each in below:
                if done >= most:
                    break
                if each.is_dir(follow_symlinks=False):
                    done += _lift(inner, each.name, directory, numbers)
                else:
                    done += _unlink(inner, each.name)
    finally:
        os.close(inner)
    with suppress(OSError):
        os.rmdir(entry.name, dir_fd=directory)
        done += 1
    return done


def _unlink(directory: int, name: str) -> int:
    try:
        os.unlink(name, dir_fd=directory)
    except OSError:
        return 0
    return 1


def _lift(inner: int, name: str, directory: int, numbers: count[int]) -> int:
    """Moves *name* of *inner* to *directory* under a free name. Returns 1 if that is possible."""
    with suppress(OSError):
        os.rmdir(name, dir_fd=inner)
        return 1
    with suppress(OSError):
        # The move changes its entry for the parent directory, so it must be writable.
        os.chmod(name, 0o700, dir_fd=inner)
    while True:
        free = f".{next(numbers)}"
        try:
            os.stat(free, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            break
    try:
        os.rename(name, free, src_dir_fd=inner, dst_dir_fd=directory)
    except OSError:
        return 0
    return 1


log = logging.getLogger("penstock.ipc")

NAME: Final = "scratch"

_held: list[int] = []
"""Descriptors whose locks mark a directory as in use; they end with the process."""


def scratch_directory() -> str | None:
    """A new private directory, this process's temporary one from now on; None if there can be none.

    First removes directories of processes that have ended.
    """
    if sys.platform != "linux":
        return None
    import fcntl

    try:
        root = Path(state_directory(), NAME)
        make_private_directory(root)
        whole = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (OSError, Unreadable):
        return None
    try:
        fcntl.flock(whole, fcntl.LOCK_EX)
        for other in root.iterdir():
            _sweep(other)
        own = os.path.join(root, f"tmp{os.urandom(8).hex()}")
        os.mkdir(own, 0o700)
        fd = os.open(own, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _held.append(fd)
    except OSError:
        return None
    finally:
        os.close(whole)
    keep_temporary_files_in(own)
    return own


def keep_temporary_files_in(directory: str) -> None:
    """Makes *directory* this process's one for temporary files."""
    os.environ["TMPDIR"] = directory
    # It reads the variable once; importing it takes longer than the rest of this module.
    loaded: Any = sys.modules.get("tempfile")
    if loaded is not None:
        loaded.tempdir = directory


def _sweep(directory: Path) -> None:
    """Removes *directory* unless its process runs, up to a limit of entries. Logs the rest."""
    if sys.platform != "linux":
        return
    import fcntl

    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if empty(fd):
            directory.rmdir()
        else:
            log.warning("%s holds more than a start removes: the next one goes on", directory)
    except BlockingIOError:
        pass
    except OSError as error:
        log.warning("%s cannot be removed: %s", directory, error.strerror)
    finally:
        os.close(fd)


_SYSTEM: Final = {
    "/": "lib lib64 opt nix/store",
    "/usr/": "lib lib64 local/lib",
    "/etc/": "ld.so.cache ld.so.conf ld.so.conf.d localtime nsswitch.conf passwd OpenCL vulkan",
    "/usr/share/": "zoneinfo vulkan glvnd",
    "/proc/": "self thread-self cpuinfo meminfo stat filesystems mounts driver sys/vm pressure",
    "/proc/sys/kernel/": (
        "cap_last_cap hostname ngroups_max numa_balancing osrelease ostype perf_event_paranoid "
        "pid_max random randomize_va_space sched_rr_timeslice_ms shmall shmmax threads-max version"
    ),
    "/sys/": "devices class bus dev fs/cgroup kernel/mm module",
}
SYSTEM_FILES: Final = tuple(
    f"{place}{name}" for place, names in _SYSTEM.items() for name in names.split()
)
"""Files that loaders, C libraries and engines read: code, time zones, and machine data."""

DEVICE_FILES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

_ACCELERATORS: Final = "dri accel kfd nvidia* dxg mali* apex_* hailo* fastrpc-* dma_heap udmabuf"
ACCELERATORS: Final = tuple(f"/dev/{name}" for name in _ACCELERATORS.split())
"""Device files of accelerators, readable and writable if they exist."""

MOST_MODULES: Final = 4096
"""Most names that are read in a directory that is shown only for its modules."""

DEFAULT_DESCRIPTORS: Final = 65_536
"""More than twice the descriptors that a host may keep for one client."""


class SandboxPolicy(NamedTuple):
    """Rights beyond computing.

    They are trees of files to *read* and *write*, patterns of *devices*, and limits (None: no
    limit) of open descriptors, address space in bytes, processes and threads, and pending signals
    and timers of this user in its namespace. Directories that it *lists* are shown only for their
    modules, unless something else in them is in its view.
    """

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    devices: tuple[str, ...] = ACCELERATORS
    max_descriptors: int = DEFAULT_DESCRIPTORS
    max_address_space: int | None = None
    max_processes: int | None = None
    max_signals: int | None = None
    lists: bool = False

    def shown(self) -> list[str]:
        """Every path that may be read or used, as given: perhaps a link, or missing."""
        return [*self._read(), *DEVICE_FILES, *self._matching()]

    def readable(self) -> list[str]:
        """Every existing path that may be read: of the system, Python, its packages, and *read*."""
        return _existing(self._read())

    def usable(self) -> list[str]:
        """Every device file that may be used."""
        return _existing([*DEVICE_FILES, *self._matching()])

    def _read(self) -> list[str]:
        own = [sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path, *_installed()]
        found = [os.path.abspath(path) for path in (*own, settings_path()) if path is not None]
        kept = _private()
        modules = [each for path in found if _holds(path, kept) for each in _modules(path, kept)]
        whole = [path for path in found if not _holds(path, kept)]
        return [*SYSTEM_FILES, *whole, *modules, *self.read]

    def listed(self) -> list[str]:
        """Directories on Python's search path that contain private data of the user.

        A process may read their modules, and nothing else. To import them it must be able to list
        the directories.
        """
        kept = _private()
        return _existing([p for p in map(os.path.abspath, sys.path) if _holds(p, kept)])

    def writable(self) -> list[str]:
        """Every path that exists and may be written."""
        return _existing(self.write)

    def _matching(self) -> list[str]:
        return [str(p) for d in self.devices for p in Path("/").glob(d.removeprefix("/"))]


def _private() -> list[str]:
    """Directories that drivers never see: home, and Penstock's state, cache and settings."""
    found = [os.path.expanduser("~")]
    for find in (
        state_directory,
        lambda: user_directory("state"),
        lambda: user_directory("cache"),
        lambda: user_directory("config"),
        lambda: absolute(cache_dir()) if cache_dir() else "",
    ):
        with suppress(PenstockError):
            found.append(find())
    return [os.path.realpath(path) for path in found if path.startswith("/")]


def _holds(path: str, private: list[str]) -> bool:
    """Whether one of *private* is *path*, or below it."""
    here = os.path.join(os.path.realpath(path), "")
    return any(os.path.join(each, "").startswith(here) for each in private)


def _modules(directory: str, private: list[str]) -> list[str]:
    """Importable entries of *directory*: modules, packages, distribution metadata."""
    found = []
    endings = (*all_suffixes(), ".dist-info", ".egg-info")
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in islice(entries, MOST_MODULES):
            if entry.name.startswith(".") or _holds(entry.path, private):
                continue
            package = os.path.join(entry.path, "__init__.py")
            if entry.name.endswith(endings) or os.path.isfile(package):
                found.append(entry.path)
        return found
    return []


def host_policy(*, shaders: bool = False) -> SandboxPolicy:
    """The policy of a host, with a new temporary directory that it may write. With *shaders* it may
    also write the directory of compiled shaders, and read the drivers of Vulkan that the
    environment names.
    """
    scratch = scratch_directory()
    written = [] if scratch is None else [scratch]
    read = list[str]()
    if shaders:
        read += vulkan.files_of_named_drivers()
        with suppress(OSError, Unreadable):
            make_private_directory(shader_directory())
            written.append(os.path.realpath(shader_directory()))
    return SandboxPolicy(read=tuple(read), write=tuple(written))


def _installed() -> list[str]:
    """Where packages are installed; `sys.path` has the editable ones."""
    import importlib.util

    paths = list(sysconfig.get_paths().values())
    penstock = importlib.util.find_spec("penstock")
    if penstock is not None and penstock.origin:
        paths.append(str(Path(penstock.origin).parent))
    return paths


def _existing(paths: list[str] | tuple[str, ...]) -> list[str]:
    wanted = {Path(path).resolve() for path in paths}
    return sorted(str(path) for path in wanted if path != Path("/") and path.exists())
