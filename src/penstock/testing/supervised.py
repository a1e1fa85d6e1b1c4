"""Runs cases in a child process with a time limit each, so that a driver's hang or crash is only
reported.

The process receives the name of a function and answers with bytes. Nothing from a driver is
unpickled. If a case exceeds its limit or the process dies, a new process continues with the next
case. The processes use a temporary state directory (the knob `state_dir`), not the user's.
"""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Self, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from penstock import knobs
from penstock.errors import GeneralFailure, PenstockError

Case: TypeAlias = tuple[str, Callable[[], bytes]]
"""The result that stands for it if it is lost, in JSON, and the function that answers with the
result in MessagePack.
"""

R = TypeVar("R", bound=msgspec.Struct)

GRACE: Final = 2.0
"""Seconds beyond the limit within which a process writes its stack."""
START_LIMIT: Final = 120.0
"""Seconds within which the process must import and create the cases."""

STOPPED_AT: Final = re.compile(r'File "([^"]*)", line (\d+) in (\S+)')
KIT: Final = Path(__file__).parent
STANDARD: Final = Path(os.__file__).parent


class Message(msgspec.Struct, frozen=True):
    """A message of the process: first the labels of all cases, then an answer for each case."""

    labels: tuple[str, ...] | None = None
    data: bytes = b""
    error: str = ""


def collect(
    make: str,
    arguments: Sequence[str],
    kind: type[R],
    *,
    limit: float,
    progress: Callable[[R], None] | None = None,
) -> list[R]:
    """The results of `supervise`; calls *progress* with each."""
    results = []
    for result in supervise(make, arguments, kind, limit=limit):
        results.append(result)
        if progress is not None:
            progress(result)
    return results


def supervise(
    make: str, arguments: Sequence[str], kind: type[R], *, limit: float
) -> Generator[R, None, None]:
    """The results of the cases that `make(*arguments)` returns, in order.

    *make* is `module:function`. If a case takes more than *limit* seconds, or ends the process, its
    result is its label's, with the problem as the message. Raises `GeneralFailure` with the error
    of *make* if it fails.
    """
    context = multiprocessing.get_context("spawn")
    start, labels = 0, None
    # Host processes of isolated drivers may still use the directory while they end.
    with tempfile.TemporaryDirectory(
        prefix="penstock-state-", ignore_cleanup_errors=True
    ) as state_directory:
        while labels is None or start < len(labels):
            with _Child(context, make, arguments, start, limit, state_directory) as child:
                labels = child.labels()
                for index in range(start, len(labels)):
                    began = time.perf_counter()
                    data, problem = child.answer(limit)
                    start = index + 1
                    if data is None:
                        lost: Any = msgspec.json.decode(labels[index], type=kind)
                        seconds = time.perf_counter() - began
                        yield replace(lost, message=problem, seconds=seconds)
                        break
                    yield msgspec.msgpack.decode(data, type=kind)
                else:
                    child.finish()


class _Child:
    """One process, killed at the end of the block."""

    def __init__(
        self,
        context: Any,
        make: str,
        arguments: Sequence[str],
        start: int,
        limit: float,
        state_directory: str,
    ) -> None:
        handle, name = tempfile.mkstemp(prefix="penstock-stack-")
        os.close(handle)
        self._stack = Path(name)
        self._pipe, theirs = context.Pipe(duplex=False)
        self._process = context.Process(
            target=work,
            args=(theirs, make, tuple(arguments), start, limit, name, state_directory),
            daemon=False,
        )
        self._process.start()
        theirs.close()

    def labels(self) -> tuple[str, ...]:
        """The labels of all cases, also of finished ones. Raises `GeneralFailure`."""
        message = self._receive(START_LIMIT)
        if message is None:
            raise GeneralFailure(f"the driver could not be loaded: {self._ended(START_LIMIT)}")
        if message.labels is None:
            raise GeneralFailure(message.error)
        return message.labels

    def answer(self, limit: float) -> tuple[bytes | None, str]:
        """The answer of the next case, or what happened to the process."""
        message = self._receive(limit + GRACE)
        return (None, self._ended(limit)) if message is None else (message.data, "")

    def _receive(self, seconds: float) -> Message | None:
        try:
            if not self._pipe.poll(seconds):
                return None
            return msgspec.msgpack.decode(self._pipe.recv_bytes(), type=Message)
        except (EOFError, OSError):
            return None

    def _ended(self, limit: float) -> str:
        self._process.join(0.5)
        code = self._process.exitcode
        place = self._place()
        if code is None:
            return f"it did not end within {limit:g} s{place}"
        if code < 0:
            with suppress(ValueError):
                return f"the process died of {signal.Signals(-code).name}{place}"
        return f"the process ended with exit code {code}{place}"

    def _place(self) -> str:
        """The innermost frame in a driver's code on the written stack."""
        with suppress(OSError):
            found = STOPPED_AT.findall(self._stack.read_text("utf-8", "replace"))
            places = [f for f in found if _may_be_a_drivers(Path(f[0]))] or found
            if places:
                file, line, function = places[0]
                return f", in {function} ({file}, line {line})"
        return ""

    def __enter__(self) -> Self:
        return self

    def finish(self) -> None:
        """Waits until the process exits, so that its drivers can clean up."""
        self._process.join(GRACE)

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        if sys.platform != "win32" and self._process.pid is not None:
            # Also ends the processes that a driver started.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()
        self._process.close()
        with suppress(OSError):
            self._stack.unlink()


def _may_be_a_drivers(file: Path) -> bool:
    """Whether *file* belongs to neither this kit nor Python."""
    if file.name.startswith("<"):
        return False
    installed = "site-packages" in file.parts
    return KIT not in file.parents and (installed or STANDARD not in file.parents)


def work(
    pipe: Connection,
    make: str,
    arguments: Sequence[str],
    start: int,
    limit: float,
    stack: str,
    state_directory: str,
) -> None:
    """The child process: creates the cases, and runs them in order from case *start* on."""
    if sys.platform != "win32":
        os.setsid()
    os.environ[knobs.state_dir.variable] = state_directory
    # A driver's output must not mix with the answer.
    os.dup2(2, 1)
    with Path(stack).open("w", encoding="utf-8") as file:
        faulthandler.enable(file)
        try:
            module, _, function = make.partition(":")
            cases: list[Case] = getattr(importlib.import_module(module), function)(*arguments)
        except PenstockError as error:
            pipe.send_bytes(msgspec.msgpack.encode(Message(error=str(error))))
            return
        pipe.send_bytes(msgspec.msgpack.encode(Message(labels=tuple(label for label, _ in cases))))
        for index in range(start, len(cases)):
            faulthandler.dump_traceback_later(limit, file=file)
            data = cases[index][1]()
            faulthandler.cancel_dump_traceback_later()
            pipe.send_bytes(msgspec.msgpack.encode(Message(data=data)))
        pipe.close()
