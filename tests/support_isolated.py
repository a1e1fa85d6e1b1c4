"""A driver that does to its own process what its input says, and the models that tests ask it to
run.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from penstock.drivers.reference import create as create_reference
from penstock.hal import Device, HostMemory, PrepareConfig, Request
from penstock.ir import DType, Model, ModelBuilder, NDArray
from penstock.sealed import Seal
from penstock.testing.domains import DomainDevice
from penstock.testing.doubles import InterceptingDevice

if TYPE_CHECKING:
    import pytest

T = TypeVar("T")

ENTRY: Final = "tests.support_isolated:create"
SHAPE: Final = (4, 4)

KILL, STOP, ABORT, HANG, EXIT, SEGFAULT, SPEAK, ONCE, LIE, LEAVE, INTERRUPT = range(-1, -12, -1)


TOLD: Final = "told"


def telling(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The `told_directory` of drivers whose processes are started from now on."""
    made = directory / TOLD
    made.mkdir()
    monkeypatch.syspath_prepend(str(made))
    return made


def told_directory() -> Path:
    """Where tests leave drivers word: on the path of modules, which is all that they may read
    beside their own.
    """
    return next((Path(each) for each in sys.path if Path(each).name == TOLD), Path("/nowhere"))


class Misbehaving(InterceptingDevice):
    """The reference device, until the first element of an input tells otherwise."""

    @property
    def version(self) -> str:
        changed = told_directory() / "version"
        return changed.read_text() if changed.exists() else self.device.version

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        for argument in arguments:
            if method.endswith("execute") and isinstance(argument, Request):
                _obey(_code(argument))
        return proceed()


def create() -> Misbehaving:
    """The driver's device."""
    return Misbehaving(create_reference(), "misbehaving")


class Fragile(InterceptingDevice):
    """The reference device, whose process dies in the calls that files beside its seals name."""

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        _die_if_told(method)
        return proceed()


def fragile() -> Fragile:
    """The driver's device. Where it is to be made the process dies if the file `create` is there,
    it raises for `raise`, ends the process for `exit`, and takes a minute for `sleep`.
    """
    _die_if_told("create")
    told = told_directory()
    if (told / "raise").exists():
        raise RuntimeError("no licence")
    if (told / "sleep").exists():
        time.sleep(60)
    if (told / "exit").exists():
        os.write(2, b"no licence\n")
        os._exit(3)
    return Fragile(create_reference(), "fragile")


def _die_if_told(call: str) -> None:
    if (told_directory() / call).exists():
        _signal(signal.SIGKILL)


class Stuck(InterceptingDevice):
    """The reference device; the call that the file `stuck` in `told_directory` names does not
    return.
    """

    def check(self) -> str | None:
        _stick_if_told("check")
        return super().check()

    def cache_files_needed(self) -> tuple[int, int]:
        _stick_if_told("cache_files_needed")
        return super().cache_files_needed()

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        _stick_if_told(method)
        return proceed()


def _stick_if_told(call: str) -> None:
    told = told_directory() / "stuck"
    if told.exists() and told.read_text() == call:
        time.sleep(600)


def stuck() -> Stuck:
    """The driver's device."""
    return Stuck(create_reference(), "stuck")


class Explained(DomainDevice):
    """A device that also prints its compile, and says how it computes operations."""

    stages = ("read",)

    def dump(self, model: Model, config: PrepareConfig, stage: str) -> str:
        return f"{stage}: {len(model.operations)} operations"

    def explain(self, model: Model, config: PrepareConfig) -> list[str]:
        return [f"as {operation.type}" for operation in model.operations]


def domains() -> Device:
    """The reference device with memory domains, and with all optional members."""
    return Explained(create_reference(), "domains")


def add_one() -> Model:
    """input + 1."""
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, SHAPE, "x")
    one = b.constant(np.ones(SHAPE, np.float32), "one")
    return b.build(b.operation("ADD", [x, one], [(DType.FLOAT32, SHAPE)]))


def order(code: int) -> NDArray:
    """The input that has the driver do that."""
    return np.full(SHAPE, code, np.float32)


def _code(request: Request) -> int:
    first = request.inputs[0] if request.inputs else None
    return int(first.array.flat[0]) if isinstance(first, HostMemory) else 0


def _obey(code: int) -> None:
    match code:
        case -1:
            _signal(signal.SIGKILL)
        case -2:
            _signal(signal.SIGSTOP)
        case -3:
            os.abort()
        case -4:
            time.sleep(3600)
        case -5:
            os._exit(3)
        case -6:
            os.write(2, b"last words of a driver\n")
            signal.raise_signal(signal.SIGSEGV)
        case -7:
            print("said on stdout", flush=True)  # noqa: T201  # the point
            sys.stderr.write("said on stderr\n")
            sys.stderr.flush()
        case -8:
            # What its host's parent keeps for it is all that outlives its process.
            kept = Seal("once", "1", files=(1, 0)).registry
            if kept.state() is None:
                kept.open()
                _signal(signal.SIGKILL)
        case -9:
            # To the client, in the middle of its stream.
            for link in Path("/proc/self/fd").iterdir():
                with suppress(OSError):
                    if str(link.readlink()).startswith("socket:"):
                        os.write(int(link.name), b"\xff" * 64)
        case -10:
            sys.exit("no licence")
        case -11:
            raise KeyboardInterrupt


def stop(pid: int) -> None:
    """Stops a process, and waits until all its threads stand still: the signal alone is only on its
    way.
    """
    os.kill(pid, signal.SIGSTOP)
    patience = time.monotonic() + 10
    while any(_state(task) != "T" for task in Path(f"/proc/{pid}/task").iterdir()):
        assert time.monotonic() < patience
        time.sleep(0.001)


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


def _signal(number: int) -> None:
    os.kill(os.getpid(), number)
    # Another thread may be the one to get it.
    time.sleep(0.1)


def stuck_in_native_code() -> Device:
    """Never made: a call that keeps the interpreter's lock for an hour."""
    import ctypes

    ctypes.PyDLL(None).sleep(3600)
    raise OSError("nobody waited")


def exits() -> Device:
    """Ends its process as it is made."""
    os._exit(7)


def aborts() -> Device:
    """Ends its process as C libraries do."""
    os.abort()


def curious() -> Device:
    """Says what became of three calls that a sandbox refuses, and ends its process."""
    import socket

    outcomes = []
    for call in (socket.socket, socket.socket, lambda: os.kill(1, 0)):
        try:
            call()
        except OSError as error:
            outcomes.append(type(error).__name__)
    sys.stderr.write(", ".join(outcomes) + "\n")
    sys.stderr.flush()
    os._exit(1)


def tells_of_its_files() -> Device:
    """Says which of the user's files it can read, and where it can write, and ends its process."""
    home = Path.home()
    read = []
    for path in (home / ".local/state/penstock/seals/key", home / "letter", home / "mine.py"):
        try:
            path.read_bytes()
            read.append(str(path))
        except OSError:
            sys.stderr.write(f"{path} refused\n")
    own = Path(os.environ.get("TMPDIR", "/nowhere"))
    with suppress(OSError):
        (own / "x").write_text("x")
        sys.stderr.write(f"{own} written\n")
    sys.stderr.write(f"read: {read}\n")
    sys.stderr.flush()
    os._exit(1)
