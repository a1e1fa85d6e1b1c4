"""Every setting, in one typed table. Nobody else reads the environment.

A value is looked up when it is used: an argument beats `override`, which beats the environment
(`PENSTOCK_<NAME>`), which beats the settings file (`knobs.toml` in the user's configuration
directory), which beats the default.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from types import MappingProxyType
from typing import Final, Generic, Literal, TypeVar

from msgspec import Struct

from penstock.errors import InputError, Unreadable

T = TypeVar("T", int, float, str, bool)

ENVIRONMENT_PREFIX: Final = "PENSTOCK_"

MOST: Final = 2.0**40
"""Of MiB and of counts."""
MOST_SECONDS: Final = 31_536_000.0
"""A year."""
SHOWN: Final = 100
"""Characters of a value that an error quotes."""

_context: ContextVar[Mapping[str, object]] = ContextVar(
    "penstock_knobs", default=MappingProxyType({})
)


class Knob(Struct, Generic[T], frozen=True):
    """One setting: its name, type, default and what it does. Call it to read it.

    A value is one of *choices*, where there are any. A number is finite, no less than *least* and
    no more than *most*, which every clock, counter and address that it becomes can hold. Of a
    *directory* it is an absolute path, or one below a home: a program and the processes of its
    drivers read it in directories of their own.
    """

    name: str
    kind: type[T]
    default: T
    doc: str
    choices: tuple[T, ...] = ()
    least: float | None = None
    most: float = MOST
    directory: bool = False

    def __call__(self, argument: T | None = None) -> T:
        """The value in force, *argument* first. Raises `InputError` for a value that it cannot
        have.
        """
        if argument is not None:
            return argument
        return self._parse(*self.source())

    def source(self) -> tuple[object, str]:
        """The raw value in force, and where it comes from."""
        if self.name in (context := _context.get()):
            return context[self.name], "context"
        if (text := os.environ.get(self.variable)) is not None:
            return text, f"environment {self.variable}"
        if self.name in (file := settings_file()):
            return file[self.name], "settings file"
        return self.default, "default"

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    def _parse(self, raw: object, source: str) -> T:
        convert: Callable[[object], T] = _CONVERT[self.kind]  # type: ignore[assignment]  # keyed by kind
        wanted = _WANTED[self.kind]
        try:
            value = convert(raw)
            if self.choices and value not in self.choices:
                wanted = f"one of {', '.join(map(str, self.choices))}"
                raise ValueError(value)
            if self.kind in {int, float} and (beyond := self._beyond(float(value))):
                wanted = f"{wanted}, {beyond}"
                raise ValueError(value)
            if self.directory and not _is_anchored(str(value)):
                wanted = "an absolute path"
                raise ValueError(value)
        except ValueError:
            shown = repr(raw)
            shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."
            raise InputError(f"knob {self.name} ({source}) must be {wanted}, not {shown}") from None
        return value

    def _beyond(self, value: float) -> str:
        """The limit that *value* does not keep, in words."""
        if self.least is not None and not self.least <= value:
            return f"{self.least:g} or more"
        return "" if abs(value) <= self.most else f"{self.most:,.0f} at most"


def _is_anchored(path: str) -> bool:
    """Whether *path* is the same directory wherever it is read; an empty one stands for the user's
    own.
    """
    return not path or path.startswith("~") or os.path.isabs(path)


def _to_bool(raw: object) -> bool:
    words = {
        "1": True,
        "true": True,
        "yes": True,
        "on": True,
        "0": False,
        "false": False,
        "no": False,
        "off": False,
    }
    text = str(raw).strip().lower()
    if text not in words:
        raise ValueError(text)
    return words[text]


_CONVERT: Final[dict[type, Callable[[object], object]]] = {
    bool: _to_bool,
    int: lambda raw: int(str(raw)),
    float: lambda raw: float(str(raw)),
    str: str,
}


_WANTED: Final[dict[type, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
}


@contextmanager
def override(**values: object) -> Iterator[None]:
    """Sets knobs for the calling context (thread or task) while the block runs."""
    if unknown := set(values) - set(KNOBS):
        raise InputError(f"no knob is named {', '.join(sorted(unknown))}")
    token = _context.set(MappingProxyType({**_context.get(), **values}))
    try:
        yield
    finally:
        _context.reset(token)


def check() -> None:
    """Raises `InputError` for the first knob that has a value which it cannot have."""
    for knob in KNOBS.values():
        knob()


def settings_file() -> Mapping[str, object]:
    """The content of the settings file; empty when there is none. `InputError` when it is not TOML."""
    if (path := settings_path()) is None:
        return MappingProxyType({})
    try:
        stamp = os.stat(path).st_mtime_ns
    except OSError:
        return MappingProxyType({})
    return _read_settings(path, stamp)


@lru_cache(maxsize=1)
def settings_path() -> str | None:
    """Where the settings file is looked for; None for a user without a home directory."""
    try:
        return os.path.join(user_directory("config"), "knobs.toml")
    except Unreadable:
        return None


_XDG_DEFAULTS: Final = {"cache": ".cache", "config": ".config", "state": ".local/state"}


def user_directory(kind: Literal["cache", "config", "state"]) -> str:
    """Where this system keeps what Penstock stores of that *kind* for the user, absolute; nothing
    is created.

    Raises `Unreadable` for a user without a home directory.
    """
    if sys.platform == "linux":
        # The XDG Base Directory Specification, short enough to spare every start the import of
        # platformdirs.
        given, home = os.environ.get(f"XDG_{kind.upper()}_HOME", ""), os.environ.get("HOME", "")
        if given.startswith("/"):
            return os.path.join(given, "penstock")
        if home.startswith("/"):
            return os.path.join(home, _XDG_DEFAULTS[kind], "penstock")
    import platformdirs

    find = getattr(platformdirs, f"user_{kind}_dir")
    try:
        found: str = find("penstock", appauthor=False)
    except RuntimeError:
        found = ""
    # Some versions of platformdirs leave the `~` of a user without a home as it is.
    if not os.path.isabs(found):
        raise Unreadable(
            f"this user has no home directory, and so no {kind} directory: set HOME or XDG_{kind.upper()}_HOME to an "
            "absolute path"
        )
    return found


def absolute(path: str) -> str:
    """*path* from the root on, `~` the user's home, without empty parts. What `..` leads out of may
    be a link, and stays.

    Raises `InputError` for the home of a user that there is none of.
    """
    expanded = os.path.expanduser(path)
    if expanded.startswith("~"):
        raise InputError(f"{path!r} is below the home of a user who has none")
    path = expanded
    if not os.path.isabs(path):
        path = os.path.join(os.getcwd(), path)
    if sys.platform == "win32":
        return os.path.normpath(path)
    return "/" + "/".join(part for part in path.split("/") if part not in {"", "."})


@lru_cache(maxsize=1)
def _read_settings(path: str, _stamp: int) -> Mapping[str, object]:
    import tomllib

    try:
        with open(path, "rb") as file:
            return MappingProxyType(tomllib.load(file))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"settings file {path} is not valid TOML: {error}") from None
    except OSError as error:
        raise InputError(f"settings file {path} cannot be read: {error.strerror}") from None


densify_limit_mib: Final = Knob(
    "densify_limit_mib",
    int,
    1024,
    "Most MiB that densifying sparse or decompressing packed constants may allocate.",
    least=0,
)
loading_limit_mib: Final = Knob(
    "loading_limit_mib",
    int,
    0,
    "Most MiB that the operations and other parts of a model file, without its weights, may take as it is loaded; 0 means "
    "16 times the size of the file, and at least 64.",
    least=0,
)
metadata_limit_mib: Final = Knob(
    "metadata_limit_mib", int, 64, "Most MiB of associated files read from one model.", least=0
)
stream_limit_mib: Final = Knob(
    "stream_limit_mib",
    int,
    2048,
    "Most MiB of a model that are read from what does not tell its size: a pipe, a socket, a file object.",
    least=1,
)
tensor_limit_mib: Final = Knob(
    "tensor_limit_mib",
    int,
    0,
    "Most MiB of one array that the reference driver computes, and of all inputs and outputs that an interpreter "
    "holds; 0 means half of the memory that the machine and its cgroup allow.",
    least=0,
)
max_run_mib: Final = Knob(
    "max_run_mib",
    int,
    0,
    "Most MiB of values that one run of a model may hold at a time, by its shapes; 0 means half of the memory that the "
    "machine and its cgroup allow, and at least 1024.",
    least=0,
)
max_in_process_ms: Final = Knob(
    "max_in_process_ms",
    int,
    500,
    "Most milliseconds that an operation may be estimated to take at worst on a driver in this process, and a tenth of what a "
    "step may: for more the driver runs in a process of its own, where the system can isolate, which a timeout ends.",
    least=1,
    most=1000 * MOST_SECONDS,
)
max_in_process_operations: Final = Knob(
    "max_in_process_operations",
    int,
    1000,
    "Most operations of a step that an engine compiles in this process where the compile has a timeout or a cancel token: "
    "more are compiled in a process of its own, where the system can isolate.",
    least=1,
)
num_threads: Final = Knob(
    "num_threads",
    int,
    0,
    "Threads a driver may use; 0 means what cgroup, affinity and OMP_NUM_THREADS allow.",
)
devices: Final = Knob(
    "devices", str, "", "Names of the devices to use, comma-separated, in order; empty means all."
)
allow_fallback: Final = Knob(
    "allow_fallback", bool, True, "Whether a failing step may be repeated on the reference device."
)
random_seed: Final = Knob(
    "random_seed",
    int,
    -1,
    "Seed of random operations whose model gives none, so that runs repeat; negative means other numbers "
    "each time.",
    most=2.0**63,
)
state_dir: Final = Knob(
    "state_dir",
    str,
    "",
    "Directory of the drivers' registries of what they cached, an absolute path; empty means the user's state directory.",
    directory=True,
)
key_store: Final = Knob(
    "key_store",
    str,
    "auto",
    "Where the key of the cache's seals lies: auto (the system's key store where it answers, else a file) or file.",
    choices=("auto", "file"),
)

cache_dir: Final = Knob(
    "cache_dir",
    str,
    "",
    "Directory of the compilation cache that cache=True uses, an absolute path; empty means the user's cache directory.",
    directory=True,
)
cache_limit_mib: Final = Knob(
    "cache_limit_mib",
    int,
    4096,
    "Most MiB in one cache directory; the entries unused for longest go first. 0 means no limit.",
    least=0,
)
lease_seconds: Final = Knob(
    "lease_seconds",
    float,
    600.0,
    "Longest that others wait for the process that compiles what they need, in seconds.",
    least=0.0,
    most=MOST_SECONDS,
)
late_write_seconds: Final = Knob(
    "late_write_seconds",
    float,
    600.0,
    "How long a driver that writes its cache files later keeps others from writing them, in seconds.",
    least=0.0,
    most=MOST_SECONDS,
)

driver_verdicts: Final = Knob(
    "driver_verdicts",
    bool,
    True,
    "Whether operations that shadow verification found wrong on a driver's version are refused there.",
)
keep_failures: Final = Knob(
    "keep_failures",
    bool,
    True,
    "Whether the last failures of drivers are kept in the state directory, for doctor --capsule.",
)
keep_failure_data: Final = Knob(
    "keep_failure_data",
    bool,
    False,
    "Whether what is kept of a failure has the data of the failing step's inputs, too.",
)
driver_timeout_ms: Final = Knob(
    "driver_timeout_ms",
    int,
    5000,
    "Milliseconds without a sign of life after which the process of an isolated driver counts as hung and is killed, and "
    "that its answers about itself and about what it supports may take.",
    least=100,
    most=1000 * MOST_SECONDS,
)
driver_start_ms: Final = Knob(
    "driver_start_ms",
    int,
    60_000,
    "Milliseconds that the process of an isolated driver may take to import the driver and make its devices, before it is "
    "killed.",
    least=100,
    most=1000 * MOST_SECONDS,
)
namespaces: Final = Knob(
    "namespaces",
    bool,
    True,
    "Whether the process of an isolated driver gets namespaces of its own, where the kernel lets this user have them "
    "(Linux): a file system of what it may read, no processes but its own, no network.",
)
sandbox_log: Final = Knob(
    "sandbox_log",
    bool,
    False,
    "Whether the process of an isolated driver writes which system calls its sandbox refused, each kind once: for whoever "
    "finds out what an engine needs. They are refused all the same.",
)
isolate: Final = Knob(
    "isolate",
    str,
    "",
    "Drivers that run in processes of their own, by name and comma-separated; NAME=no keeps one in this process. All "
    "others: those of distributions other than Penstock do.",
)

driver_sources: Final = Knob(
    "driver_sources",
    str,
    "",
    "Whose a driver or a device is that several distributions bring under one name: NAME=DISTRIBUTION, separated by "
    "commas. A name that is Penstock's own stays so.",
)

lent_limit_mib: Final = Knob(
    "lent_limit_mib",
    int,
    0,
    "Most MiB of pools, rings, models and messages that one connection may have the process of an isolated driver hold; of a "
    "service all connections of one user together. All connections of a process may have half as much again. 0 means half "
    "of the memory that the machine, its cgroup and the process's limit of address space allow.",
    least=0,
)

concurrent_executions: Final = Knob(
    "concurrent_executions",
    int,
    0,
    "Executions at a time on a device that does not say how many it takes; others wait, those of higher priority first. 0 "
    "lets all of one priority go on at once, and as many as there are processors, two at least, where there are several.",
    least=0,
    most=65_536,
)

openvino_compilation: Final = Knob(
    "openvino_compilation",
    str,
    "now",
    "When the OpenVINO devices compile: now, first_run (when a model is first run), or staged (a baseline now, the "
    "optimised form after some runs).",
    choices=("now", "first_run", "staged"),
)

services: Final = Knob(
    "services",
    str,
    "",
    "Drivers that a system service serves, and where it listens: NAME=/PATH/OF/ITS/SOCKET, separated by commas.",
)
ring_spin_us: Final = Knob(
    "ring_spin_us",
    int,
    200,
    "Microseconds that a run on an isolated driver, and the driver's side of its ring, look for each other's words before "
    "they sleep; 0 where processors are scarce.",
    least=0,
    most=1e6,
)

KNOBS: Final[Mapping[str, Knob[int] | Knob[str] | Knob[bool] | Knob[float]]] = MappingProxyType(
    {
        k.name: k
        for k in (
            densify_limit_mib,
            loading_limit_mib,
            metadata_limit_mib,
            stream_limit_mib,
            tensor_limit_mib,
            max_run_mib,
            max_in_process_ms,
            max_in_process_operations,
            num_threads,
            devices,
            allow_fallback,
            random_seed,
            state_dir,
            key_store,
            cache_dir,
            cache_limit_mib,
            lease_seconds,
            late_write_seconds,
            driver_verdicts,
            keep_failures,
            keep_failure_data,
            driver_timeout_ms,
            driver_start_ms,
            namespaces,
            sandbox_log,
            isolate,
            driver_sources,
            lent_limit_mib,
            concurrent_executions,
            openvino_compilation,
            ring_spin_us,
            services,
        )
    }
)
