"""`Apart`: answers of a process that whatever is asked may bring down."""

from __future__ import annotations

import contextlib
import multiprocessing
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from penstock.closing import Closing

ROOT: Final = Path(__file__).parents[2]


class Crashed(Exception):
    """The process died of what it was asked, or had to be ended."""


class Apart(Closing):
    """The process of *module*, which answers what comes by a pipe; it is replaced when a task
    brings it down. Close it, or use it in a with statement. A task may take *patience* seconds.
    """

    def __init__(self, module: str, patience: float) -> None:
        self._module, self._patience = module, patience
        self._pipe: Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.crashes = 0

    def answer(self, *task: object) -> Any:
        """What the process says. Raises `Crashed` when the task brought it down."""
        pipe = self._start()
        try:
            pipe.send(task)
            if not pipe.poll(self._patience):
                self._end(kill=True)
                raise Crashed(f"no answer within {self._patience:.0f} s")
            return pipe.recv()
        except (EOFError, ConnectionError) as error:
            code = self._end(kill=False)
            raise Crashed(f"its process ended with {code}") from error

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
                [sys.executable, "-m", self._module, str(theirs.fileno())],
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
        code = process.wait(self._patience)
        self.crashes += bool(code)
        return code
