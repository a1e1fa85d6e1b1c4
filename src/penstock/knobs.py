"""Every setting, in one typed table. No other module reads the environment.

A value is looked up when it is used. The order of precedence is: an argument, `override`, the
environment (`PENSTOCK_<NAME>`), the settings file (`knobs.toml` in the user's configuration
directory), the default.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import force_setattr

from penstock.errors import BadSetting, InputError, Unreadable

T = TypeVar("T", int, float, str, bool)

ENVIRONMENT_PREFIX: Final = "PENSTOCK_"

MOST: Final = 2.0**40
"""Maximum of counts and of MiB."""
MOST_SECONDS: Final = 31_536_000.0
"""Maximum of seconds: one year."""
SHOWN: Final = 100
"""Characters of a value that an error quotes."""

_context: ContextVar[Mapping[str, object]] = ContextVar(
    "penstock_knobs", default=MappingProxyType({})
)


class Knob(Struct, Generic[T], frozen=True):
    """One setting: its name, type, default and description. Call it to read its value.

    A value is one of *choices*, if any. A number is finite and from *least* to *most*. A
    *directory* is an absolute path, or one below a home directory, because the program and the host
    processes read it from different working directories. *pairs* are NAME=VALUE, separated by
    commas.
    """

    name: str
    kind: type[T]
    default: T
    doc: str
    choices: tuple[T, ...] = ()
    least: float | None = None
    most: float = MOST
    directory: bool = False
    pairs: bool = False

    def __call__(self, argument: T | None = None) -> T:
        """The effective value, or *argument*. Raises `BadSetting` for an invalid value."""
        return self._parse(*self.source()) if argument is None else argument

    def source(self) -> tuple[object, str]:
        """The effective raw value, and its source."""
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
        convert, wanted = _KINDS[self.kind]
        try:
            value: T = convert(raw)  # type: ignore[assignment]  # keyed by kind
            if self.choices and value not in self.choices:
                wanted = f"one of {', '.join(map(str, self.choices))}"
                raise ValueError(value)
            if self.kind in {int, float} and (beyond := self._beyond(float(value))):
                wanted = f"{wanted}, {beyond}"
                raise ValueError(value)
            path = str(value)
            # It must be the same directory from any working directory. Empty is the default.
            if self.directory and path and not (path.startswith("~") or os.path.isabs(path)):
                wanted = "an absolute path"
                raise ValueError(value)
            if self.pairs and not all("=" in p for p in str(value).split(",") if p.strip()):
                wanted = "NAME=VALUE, ..."
                raise ValueError(value)
        except ValueError:
            shown = repr(raw)
            shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."
            raise BadSetting(f"knob {self.name} ({source}) must be {wanted}, not {shown}") from None
        return value

    def _beyond(self, value: float) -> str:
        if self.least is not None and not self.least <= value:
            return f"{self.least:g} or more"
        return "" if abs(value) <= self.most else f"{self.most:,.0f} at most"


class DriverSetting(Struct, frozen=True):
    """A setting that a driver owns: one `NAME=VALUE` of the knob `driver_settings`.

    Call it to read its value. *name* begins with the driver's name and an underscore; the first of
    *choices* is the default.
    """

    name: str
    choices: tuple[str, ...]

    def __post_init__(self) -> None:
        _driver_settings.add(self.name)

    def __call__(self) -> str:
        """The effective value. Raises `BadSetting` for a value that is not one of *choices*.

        Warns, once for each name, of settings of the driver that it does not have.
        """
        pairs = (part.partition("=") for part in driver_settings().split(","))
        values = {name.strip(): value.strip() for name, _, value in pairs}
        _warn_of_unknown(self.name, values.keys() - _driver_settings - {""})
        value = values.get(self.name, self.choices[0])
        if value not in self.choices:
            wanted, shown = ", ".join(self.choices), repr(value[:SHOWN])
            raise BadSetting(f"driver setting {self.name} must be one of {wanted}, not {shown}")
        return value


_driver_settings: Final[set[str]] = set()
"""The names of the settings that drivers of this process have declared."""

_warned: Final[set[str]] = set()
"""Names of driver settings that were warned of."""


def _warn_of_unknown(name: str, unknown: set[str]) -> None:
    """Warns of those of the *unknown* settings that are meant for the driver of setting *name*."""
    if not unknown:
        return
    import difflib
    import warnings

    driver = name.partition("_")[0]
    for other in sorted(unknown - _warned):
        if other.startswith(f"{driver}_") or difflib.get_close_matches(other, [name], cutoff=0.8):
            _warned.add(other)
            known = ", ".join(sorted(n for n in _driver_settings if n.startswith(f"{driver}_")))
            text = f"knob driver_settings: {driver} has no setting {other!r}; it has {known}"
            warnings.warn(text, stacklevel=3)


def _to_bool(raw: object) -> bool:
    text = str(raw).strip().lower()
    if text not in {"1", "true", "yes", "on", "0", "false", "no", "off"}:
        raise ValueError(text)
    return text in {"1", "true", "yes", "on"}


_KINDS: Final[dict[type, tuple[Callable[[object], object], str]]] = {
    bool: (_to_bool, "true or false"),
    int: (lambda raw: int(str(raw)), "a whole number"),
    float: (lambda raw: float(str(raw)), "a number"),
    str: (str, "text"),
}
"""For each kind, how to read a value, and what is wanted."""


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
    """Raises `BadSetting` for the first knob with an invalid value."""
    for knob in KNOBS.values():
        knob()


def settings_file() -> Mapping[str, object]:
    """The content of the settings file, if any. Raises `BadSetting` for invalid TOML."""
    if (path := settings_path()) is None:
        return MappingProxyType({})
    try:
        stamp = os.stat(path).st_mtime_ns
    except OSError:
        return MappingProxyType({})
    return _read_settings(path, stamp)


@lru_cache(maxsize=1)
def settings_path() -> str | None:
    """The path of the settings file; None for a user without a home directory."""
    try:
        return os.path.join(user_directory("config"), "knobs.toml")
    except Unreadable:
        return None


_XDG_DEFAULTS: Final = {"cache": ".cache", "config": ".config", "state": ".local/state"}


def user_directory(kind: Literal["cache", "config", "state"]) -> str:
    """The user's directory of that *kind* for Penstock, absolute. Nothing is created.

    Raises `Unreadable` for a user without a home directory.
    """
    if sys.platform == "linux":
        # Follows the XDG Base Directory Specification; importing platformdirs would slow every
        # start.
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
    # Some versions of platformdirs leave `~` in the path for a user without a home.
    if not os.path.isabs(found):
        raise Unreadable(
            f"this user has no home directory, and so no {kind} directory: set HOME or "
            f"XDG_{kind.upper()}_HOME to an absolute path"
        )
    return found


def absolute(path: str) -> str:
    """*path* made absolute, with `~` expanded and empty parts removed.

    `..` is kept, because it may leave a link's target. Raises `InputError` for the home of an
    unknown user.
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
        raise BadSetting(f"settings file {path} is not valid TOML: {error}") from None
    except OSError as error:
        raise BadSetting(f"settings file {path} cannot be read: {error.strerror}") from None


def _knob(default: T, doc: str, **limits: Any) -> Knob[T]:
    """Makes a knob, whose name is its variable's; *limits* are further fields of `Knob`.

    A number is at least 0, unless *limits* say otherwise.
    """
    least = 0 if type(default) in {int, float} else None
    return Knob("", type(default), default, doc, **{"least": least, **limits})


densify_limit_mib: Final = _knob(
    1024, "Most MiB that densifying sparse or decompressing packed constants may allocate."
)
loading_limit_mib: Final = _knob(
    0,
    "Most MiB that loading a model file may allocate, without its weights; 0 means 16 times the "
    "size of the file, and at least 64.",
)
metadata_limit_mib: Final = _knob(64, "Most MiB of associated files read from one model.")
stream_limit_mib: Final = _knob(
    2048,
    "Most MiB of a model read from a source of unknown size: a pipe, a socket, a file object.",
    least=1,
)
tensor_limit_mib: Final = _knob(
    0,
    "Most MiB of one array that the reference driver computes, and of all inputs and outputs that "
    "an interpreter holds; 0 means half of the memory that the machine and its cgroup allow.",
)
max_run_mib: Final = _knob(
    0,
    "Most MiB of values that one run of a model may hold at a time, by its shapes; 0 means half of "
    "the memory that the machine and its cgroup allow, and at least 1024.",
)
max_in_process_ms: Final = _knob(
    500,
    "Most milliseconds that one operation may be estimated to take on a driver in this process, "
    "and a tenth of the limit of a step. A driver over the limit runs in a host process, if the "
    "system can isolate; a timeout then ends that process.",
    least=1,
    most=1000 * MOST_SECONDS,
)
max_in_process_operations: Final = _knob(
    1000,
    "Most operations of a step that an engine compiles in this process if the compile has a "
    "timeout or a cancel token. Larger steps are compiled in a host process, if the system can "
    "isolate.",
    least=1,
)
num_threads: Final = _knob(
    0,
    "Threads a driver may use; 0 means what cgroup, affinity and OMP_NUM_THREADS allow.",
    least=None,
)
devices: Final = _knob(
    "", "Names of the devices to use, comma-separated, in order; empty means all."
)
allow_fallback: Final = _knob(True, "Whether the reference device may repeat a step that failed.")
random_seed: Final = _knob(
    -1,
    "Seed of random operations for which the model gives none; a negative one means other numbers "
    "in each run.",
    least=None,
    most=2.0**63,
)
calibrate: Final = _knob(
    "background",
    "Whether a program that runs for more than 10 seconds has what operations cost on its devices "
    "measured by a process of low priority (background), a tenth of one core, or never.",
    choices=("background", "never"),
)
state_dir: Final = _knob(
    "",
    "Directory of the drivers' registries of what they cached, an absolute path; empty means the "
    "user's state directory.",
    directory=True,
)
key_store: Final = _knob(
    "auto",
    "Where the key of the cache's seals is stored: auto (the system's key store if there is one, "
    "else a file) or file.",
    choices=("auto", "file"),
)
cache_dir: Final = _knob(
    "",
    "Directory of the compilation cache that cache=True uses, an absolute path; empty means the "
    "user's cache directory.",
    directory=True,
)
cache_limit_mib: Final = _knob(
    4096,
    "Most MiB in one cache directory. The least recently used entries are evicted first. 0 means "
    "no limit.",
)
cache_store: Final = _knob(
    "",
    "URL of the shared store that cache=True fetches entries from (s3://, gs://, https://, "
    "file://); empty means none.",
)
store_root: Final = _knob(
    "",
    "File of the trusted root of shared stores, an absolute path. Without it nothing that a store "
    "has is used.",
    directory=True,
)
store_key: Final = _knob(
    "",
    "File of the private key to publish to shared stores with, an absolute path; empty means that "
    "nothing is published.",
    directory=True,
)
store_seconds: Final = _knob(
    5.0,
    "Most seconds that a compile waits for a shared store before it goes on without.",
    most=MOST_SECONDS,
)
store_jitter_seconds: Final = _knob(
    0.0,
    "Most seconds of a random pause before a process first asks a shared store, so that a fleet "
    "that starts at once does not ask it at once.",
    least=0,
    most=MOST_SECONDS,
)
store_check_hours: Final = _knob(
    24.0,
    "Hours after which a start that hits asks its shared store which publishers are still trusted; "
    "0 means never.",
    least=0,
)
store_wait_seconds: Final = _knob(
    60.0,
    "Most seconds that a compile waits for another machine that compiles the same entry.",
    most=MOST_SECONDS,
)
lease_seconds: Final = _knob(
    600.0,
    "Most seconds that a process waits for another process that compiles the same entry.",
    most=MOST_SECONDS,
)
late_write_seconds: Final = _knob(
    600.0,
    "Seconds for which a driver that writes its cache files later keeps others from writing them.",
    most=MOST_SECONDS,
)
driver_verdicts: Final = _knob(
    True, "Whether to refuse operations that shadow verification found wrong on a driver's version."
)
keep_failures: Final = _knob(
    True,
    "Whether the last failures of drivers are kept in the state directory, for doctor --capsule.",
)
keep_failure_data: Final = _knob(
    False, "Whether a kept failure includes the data of the step's inputs."
)
driver_timeout_ms: Final = _knob(
    5000,
    "Milliseconds without a heartbeat after which the host process of a driver counts as hung and "
    "is killed; also the time limit for its answers about itself and about what it supports.",
    least=100,
    most=1000 * MOST_SECONDS,
)
driver_start_ms: Final = _knob(
    60_000,
    "Milliseconds that a host process may take to import its driver and make its devices before it "
    "is killed.",
    least=100,
    most=1000 * MOST_SECONDS,
)
submit_timeout_ms: Final = _knob(
    20_000,
    "Milliseconds after which work on a graphics processor counts as hung, beyond a hundred times "
    "what was predicted for it and, in the first run of a model, the time to compile its shaders.",
    least=100,
    most=1000 * MOST_SECONDS,
)
namespaces: Final = _knob(
    True,
    "Whether a host process gets namespaces of its own, if the kernel allows it (Linux): only the "
    "files that it may read, only its own processes, no network.",
)
sandbox_log: Final = _knob(
    False, "Whether a host process logs the system calls that its sandbox refused, each kind once."
)
isolate: Final = _knob(
    "",
    "Drivers that run in host processes, by name and comma-separated; NAME=no keeps one in this "
    "process. Drivers of other distributions than Penstock are isolated by default.",
)
driver_sources: Final = _knob(
    "",
    "The distribution to use if several bring a driver or a device of the same name: "
    "NAME=DISTRIBUTION, comma-separated. Penstock's own names cannot be replaced.",
)
lent_limit_mib: Final = _knob(
    0,
    "Most MiB of pools, rings, models and messages that one connection may have a host process "
    "hold; for a service, all connections of one user together. All connections of a process may "
    "use half as much again. 0 means half of the memory that the machine, its cgroup and the "
    "process's limit of address space allow.",
)
concurrent_executions: Final = _knob(
    0,
    "Most concurrent executions on a device that declares no limit; further ones wait in a "
    "priority queue. 0 means no limit while all have the same priority, else the number of "
    "processors, at least two.",
    most=65_536,
)
driver_settings: Final = _knob(
    "",
    "Settings that drivers own, as their pages document them: NAME=VALUE, comma-separated.",
    pairs=True,
)
ring_spin_us: Final = _knob(
    200,
    "Microseconds that both sides of an isolated driver's ring spin before they sleep; 0 if "
    "processors are scarce.",
    most=1e6,
)
services: Final = _knob(
    "",
    "Drivers that a system service serves, and its socket: NAME=/PATH/OF/ITS/SOCKET, "
    "comma-separated.",
)

KNOBS: Final[Mapping[str, Knob[int] | Knob[str] | Knob[bool] | Knob[float]]] = MappingProxyType(
    {name: knob for name, knob in [*globals().items()] if isinstance(knob, Knob)}
)
"""Every knob by its name."""

for _name, _own in KNOBS.items():
    force_setattr(_own, "name", _name)
