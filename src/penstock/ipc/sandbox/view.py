"""A driver's own file system: only the files that it may read and write, at the same paths.

Links on the way to these files are created again, so that every path to them works.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from penstock.ipc.sandbox import kernel
from penstock.ipc.sandbox.policy import keep_temporary_files_in

BIND: Final = 0x1000
RECURSIVE: Final = 0x4000
PRIVATE: Final = 0x4_0000
NOSUID: Final = 2
NODEV: Final = 4
NOEXEC: Final = 8
NOATIME: Final = 1024
NODIRATIME: Final = 2048
RELATIME: Final = 1 << 21
READ_ONLY: Final = 1
REMOUNT: Final = 32
DETACH: Final = 2

ST_RELATIME: Final = 4096
"""As statvfs(3) has it."""

# No file is made there.
MOUNT_POINTS: Final = ("/tmp", "/mnt", "/media", "/srv", "/run", "/var")  # noqa: S108
"""Directories that systems have. The view is mounted at one of them, and hides its content."""
IN_MEMORY: Final = "/scratch"
"""Temporary files, if no directory can hold them: the disk is full, or there is no home."""

USED: Final = ("/dev/", "/sys/")
"""Devices are written."""

MOST_LINKS: Final = 40
"""Most links in a path, as in the kernel."""

USERS: Final = "/etc/passwd"
"""C libraries look up the user there: the view's file has one line."""

PROCESSES: Final = "/proc"
DEVICES: Final = "/sys"
GROUPS: Final = "/sys/fs/cgroup"
"""Lists resource limits of the process; it is mounted separately."""


class _View:
    """The tree under construction at *root*."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._shown: set[str] = set()

    def show(self, path: str) -> None:
        """Makes *path* visible, with all below it. Skips a missing or unreachable path."""
        links = 0
        todo = list(PurePosixPath(path).parts[1:])
        at = "/"
        while todo:
            name = todo.pop(0)
            if name == "..":
                at = os.path.dirname(at)
                continue
            at = os.path.join(at, name)
            if at in self._shown:
                return
            try:
                mode = os.lstat(at).st_mode
            except OSError:
                return
            here = self._root + at
            if stat.S_ISLNK(mode):
                links += 1
                if links > MOST_LINKS:
                    return
                target = os.readlink(at)
                if not os.path.lexists(here):
                    os.symlink(target, here)
                todo = [*PurePosixPath(target).parts, *todo]
                if target.startswith("/"):
                    todo = todo[1:]
                    at = "/"
                else:
                    at = os.path.dirname(at)
            elif todo:
                os.makedirs(here, exist_ok=True)
            else:
                self._bind(at, here, directory=stat.S_ISDIR(mode))

    def _bind(self, path: str, here: str, *, directory: bool) -> None:
        self._shown.add(path)
        if directory:
            os.makedirs(here, exist_ok=True)
        elif not os.path.lexists(here):
            Path(here).touch()
        kernel.mount(path, here, "", BIND | RECURSIVE)
        if not path.startswith(USED):
            _keep_from_writing(here)

    def keep_from_writing(self) -> None:
        """Makes mounts that are nested in visible paths read-only, as those paths are."""
        shown = tuple(f"{self._root}{path}/" for path in self._shown if not path.startswith(USED))
        for here in _mounts():
            if here.startswith(shown):
                _keep_from_writing(here)


def _mounts() -> list[str]:
    """Mount points of this namespace (proc(5), `mountinfo`, with octal escapes)."""
    lines = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
    return [
        re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), line.split(" ")[4])
        for line in lines
    ]


def _keep_from_writing(here: str) -> None:
    """Makes a mount read-only if possible; Landlock enforces it too, on kernels that have it."""
    if sys.platform == "win32":
        return
    flags = os.statvfs(here).f_flag
    # Flags that the system has set cannot be removed here, so they must be repeated.
    kept = flags & (NOSUID | NODEV | NOEXEC | NOATIME | NODIRATIME)
    kept |= RELATIME if flags & ST_RELATIME else 0
    with suppress(OSError):
        kernel.mount("none", here, "", REMOUNT | BIND | READ_ONLY | kept)


def enter(paths: Iterable[str], listed: Iterable[str], written: Sequence[str]) -> tuple[str, ...]:
    """Restricts this process, in its own mount namespace, to *paths*.

    It also sees the directories *listed*, with those of *paths* in them, and the directory
    *written*, or one in memory. Returns the writable directory. Descriptors stay open. Raises
    `OSError`; the process is unusable then.
    """
    if sys.platform == "win32":
        raise OSError("namespaces are Linux's")
    kernel.mount("none", "/", "", RECURSIVE | PRIVATE)
    paths = sorted(paths, key=len)
    root = os.path.join(written[0], ".root") if written else _mount_point(paths)
    if written:
        os.mkdir(root)
    kernel.mount("penstock", root, "tmpfs", NOSUID | NODEV)
    view = _View(root)
    _show_system(view, root)
    for path in paths:
        if path == USERS:
            _name_user(root)
        elif not path.startswith((PROCESSES, DEVICES)) or path == GROUPS:
            view.show(path)
    view.keep_from_writing()
    for path in listed:
        os.makedirs(root + path, exist_ok=True)
    for path in written:
        os.makedirs(root + path, exist_ok=True)
        # Without nested mounts: the writable directory is not this tree.
        kernel.mount(path, root + path, "", BIND)
    if not written:
        os.mkdir(root + IN_MEMORY)
        kernel.mount("penstock", root + IN_MEMORY, "tmpfs", NOSUID | NODEV)
        keep_temporary_files_in(IN_MEMORY)
    os.mkdir(f"{root}/.old")
    kernel.pivot_root(root, f"{root}/.old")
    os.chdir("/")
    kernel.unmount("/.old", DETACH)
    os.rmdir("/.old")
    if written:
        os.rmdir(root)
    return tuple(written) or (IN_MEMORY,)


def _mount_point(paths: Iterable[str]) -> str:
    """A directory that holds none of *paths*. Raises `OSError` if there is none."""
    shown = [place for path in paths for place in (path, os.path.realpath(path))]
    for directory in MOUNT_POINTS:
        if os.path.isdir(directory) and not any(f"{p}/".startswith(f"{directory}/") for p in shown):
            return directory
    raise OSError(f"a driver's files lie below each of {', '.join(MOUNT_POINTS)}")


def _show_system(view: _View, root: str) -> None:
    """Mounts /proc and /sys of the namespaces, or shows the system's if that is not allowed."""
    for path, kind in ((PROCESSES, "proc"), (DEVICES, "sysfs")):
        os.mkdir(root + path)
        try:
            kernel.mount(kind, root + path, kind, NOSUID | NODEV | NOEXEC)
        except OSError:
            # Parts of it are hidden here, as in containers, and a new one would show them.
            view.show(path)


def _name_user(root: str) -> None:
    if sys.platform == "win32":
        raise OSError("namespaces are Linux's")
    user, group = os.geteuid(), os.getegid()
    Path(root, "etc").mkdir(exist_ok=True)
    Path(root + USERS).write_text(f"driver:x:{user}:{group}::/nonexistent:/bin/false\n", "ascii")
