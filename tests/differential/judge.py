"""`Judge`: LiteRT's answer to a file and its inputs, whatever that does to the process that computes it."""

from __future__ import annotations

import contextlib
import multiprocessing
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from penstock.ir import NDArray
from tests.differential.worker import RESOLVERS, Answer

ROOT: Final = Path(__file__).parents[2]
PATIENCE: Final = 20.0
"""Seconds that LiteRT may take for one small model."""

REFERENCE, DEFAULT = RESOLVERS
DELEGATED: Final = "BUILTIN"
"""The default kernels and XNNPACK."""

MISSING: Final = "Didn't find op"
UNRESOLVED: Final = "unresolved custom op"


class Crashed(Exception):
    """LiteRT's process died of a model, or had to be ended."""


class Judge:
    """A process that runs LiteRT, replaced when a model brings it down. Close it, or use it in a with statement."""

    def __init__(self) -> None:
        self._pipe: Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.crashes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def ask(self, file: bytes, inputs: Sequence[NDArray], resolver: str = REFERENCE) -> Answer:
        """The outputs, or LiteRT's words of refusal. Raises `Crashed` when this model brought it down."""
        pipe = self._start()
        try:
            pipe.send((file, list(inputs), resolver))
            if not pipe.poll(PATIENCE):
                self._end(kill=True)
                raise Crashed(f"no answer within {PATIENCE:.0f} s")
            answer: Answer = pipe.recv()
        except (EOFError, ConnectionError) as error:
            code = self._end(kill=False)
            raise Crashed(f"LiteRT's process ended with {code}") from error
        return answer

    def close(self) -> None:
        """Ends the process."""
        if self._pipe is not None:
            with contextlib.suppress(ConnectionError):
                self._pipe.send(None)
            self._end(kill=False)

    def _start(self) -> Connection:
        if self._pipe is None:
            ours, theirs = multiprocessing.Pipe()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.differential.worker", str(theirs.fileno())],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
            theirs.close()
            self._pipe = ours
        return self._pipe

    def _end(self, *, kill: bool) -> int | None:
        pipe, process = self._pipe, self._process
        self._pipe = self._process = None
        if pipe is not None:
            pipe.close()
        if process is None:
            return None
        if kill:
            process.kill()
        code = process.wait(PATIENCE)
        self.crashes += bool(code)
        return code
