"""A process that compiles with the lab device as it is told, one line of JSON a command, and the
hammer of many.

`Child` starts `python -m tests.support_together ROOT` and talks to it. What it does with the cache
below ROOT is what any process does: nothing is injected but what a command asks for.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

import penstock
from penstock import knobs
from penstock.cache import Cache
from penstock.cache.info import CacheInfo
from penstock.drivers.openvino import OpenVinoDevice
from penstock.hal import ProgressEvent
from penstock.testing.doubles import FaultyFiles
from penstock.testing.lab import LabDevice
from tests.support_attacks import LabRig, expected, given, layer

PROJECT = Path(__file__).resolve().parents[1]
TOKEN = bytes(range(32))
BIG = 256, 300
"""Units and depth of a layer of about 300 KiB, so that a few are more than the smallest cache."""


class Child:
    """The parent's end."""

    def __init__(self, root: Path, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support_together", str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=PROJECT,
            env={**os.environ, "PENSTOCK_STATE_DIR": str(root / "state"), **environment},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def send(self, do: str = "go on", **command: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **command}) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """The next line: an event, or the answer to a command."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the process ended with {self.process.wait()}"
        heard: dict[str, Any] = json.loads(line)
        assert "error" not in heard, heard["error"]
        return heard

    def ask(self, do: str, **command: object) -> dict[str, Any]:
        self.send(do, **command)
        return self.hear()

    def compiled(self, **command: object) -> tuple[str, str, int]:
        """Outcome, reason and compiles of one compile and run; the answer was right."""
        heard = self.ask("compile", **command)
        assert heard["right"]
        return heard["outcome"], heard["reason"], heard["compiles"]


@contextmanager
def children(root: Path, count: int, **environment: str) -> Iterator[list[Child]]:
    """Processes that have imported everything and wait for a command."""
    with ExitStack() as stack:
        started = [stack.enter_context(Child(root, **environment)) for _ in range(count)]
        for child in started:
            assert child.hear() == {"event": "ready"}
        yield started


class Pool:
    """Children that several tests use, each below its own root; whoever died is replaced."""

    def __init__(self, count: int) -> None:
        self._children: list[Child] = []
        self._count = count

    def at(self, root: Path) -> list[Child]:
        alive = [child for child in self._children if child.process.poll() is None]
        new = [Child(root) for _ in range(self._count - len(alive))]
        for child in new:
            assert child.hear() == {"event": "ready"}
        self._children = [*alive, *new]
        for child in self._children:
            child.ask("move", root=str(root))
        return self._children

    def kill(self) -> None:
        for child in self._children:
            child.kill()


class Worker:
    """The child's end. One model may stay open between commands."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.stack = ExitStack()
        self.device: LabDevice | OpenVinoDevice = LabDevice()
        self.model = layer(1)
        self.compiled: Any = None
        self.files: Any = None

    def compile(self, **command: Any) -> dict[str, object]:
        """Opens, runs, closes."""
        opened = self.open(**command)
        try:
            right = self.run()["right"]
        finally:
            self.close()
        return {**opened, "right": right, "compiles": self.device.compiles}

    def open(
        self,
        model: int = 1,
        size: Sequence[int] = (3, 4),
        mode: Any = "now",
        token: bool = False,
        hold: Sequence[str] = (),
        folder: str = "cache",
        quick: bool = False,
        openvino: bool = False,
    ) -> dict[str, object]:
        """Compiles; *hold* names what is told and, but for "lease", waited for. *quick* waits for
        no disk. With *openvino* on that device.
        """
        self.model = layer(model, *size)
        rig = LabRig(self.root / folder) if quick else None
        directory = self.root / folder if rig is None else rig.path
        options: dict[str, Any] = {"mode": mode, "on_engine": self._engine(hold)}
        if openvino:
            from tests.support_openvino import cpu

            self.device = cpu()
            self.stack.enter_context(knobs.override(driver_settings=f"openvino_compilation={mode}"))
        elif rig is None:
            self.device = LabDevice(**options)
        else:
            rig.files = self.files = FaultyFiles(fault=self._pause)
            rig.device_options = options
            self.device = rig.device()

        def progress(event: ProgressEvent) -> None:
            if "lease" in hold and (event.stage, event.done) == ("lease", 0):
                say({"event": "lease"})

        info = CacheInfo(directory, TOKEN if token else None)
        with ExitStack() as stack:
            if rig is not None:
                stack.enter_context(rig.injected())
            self.compiled = penstock.compile(
                self.model, devices=[self.device], cache=info, progress=progress
            )
        self.stack.callback(self.compiled.close)
        found = self.compiled.receipt.steps[0].cache
        return {
            "outcome": found.outcome,
            "reason": found.reason,
            "compiles": self.device.compiles,
            "not_saved": found.not_saved,
        }

    def run(self, times: int = 1, pause: int | None = None) -> dict[str, object]:
        """Runs; before the file operation number *pause* of it, tells and waits. *operations* is
        how many it took.
        """
        before = 0
        if self.files is not None:
            before = len(self.files.log)
            self.files.at = -1 if pause is None else before + pause
        right = all(
            np.array_equal(self.compiled.run([given(self.model)])[0], expected(self.model))
            for _ in range(times)
        )
        done = 0 if self.files is None else len(self.files.log) - before
        return {"right": right, "compiles": self.device.compiles, "operations": done}

    def close(self) -> dict[str, object]:
        self.stack.close()
        return {}

    def move(self, root: str) -> dict[str, object]:
        """Closes what is open, and goes on below another root."""
        self.close()
        self.root = Path(root)
        os.environ["PENSTOCK_STATE_DIR"] = str(self.root / "state")
        return {}

    def die(self, at: int, folder: str, mode: Any, model: int) -> dict[str, object]:
        """A process of its own that is killed just before file operation number *at* of a compile
        and three runs; whether it came to that.
        """
        if not (pid := os.fork()):
            files = FaultyFiles(at, lambda: os.kill(os.getpid(), signal.SIGKILL))
            rig = LabRig(
                self.root / folder, files=files, registry_files=files, device_options={"mode": mode}
            )
            rig.compile(layer(model), CacheInfo(rig.path, TOKEN), runs=3)
            os._exit(0)
        status = os.waitpid(pid, 0)[1]
        assert status in {0, signal.SIGKILL}
        return {"died": status != 0}

    def hammer(self, role: str, seed: int, seconds: float) -> dict[str, object]:
        """Does its part on one directory until the time is over; what came of it, counted."""
        seen: Counter[str] = Counter()
        draw = random.Random(seed)
        act: Callable[[], str] = {
            "compile": lambda: self._any(draw, ["now"], token=False),
            "late": lambda: self._any(draw, ["first_run", "staged"], token=False),
            "write": lambda: self._any(draw, ["now", "staged"], token=True),
            "evict": lambda: self._evict(draw),
            "verify": self._verify,
        }[role]
        until = time.monotonic() + seconds
        while True:
            seen[act()] += 1
            if time.monotonic() >= until:
                return {"seen": seen}

    def _any(self, draw: random.Random, modes: Sequence[str], token: bool) -> str:
        mode, model = draw.choice(modes), draw.randrange(3 if token else 6)
        opened = self.open(model=model, size=BIG, mode=mode, token=token)
        try:
            if not self.run(times=draw.choice([1, 4]))["right"]:
                return "wrong"
        finally:
            self.close()
        if opened["outcome"] == "hit":
            return f"hit {opened['reason']}"
        return str(opened["reason"]).partition(":")[0]

    def _evict(self, draw: random.Random) -> str:
        gone = Cache(self.root / "cache").gc(draw.choice([0, 400_000, 900_000]))
        return "evicted" if gone else "nothing to evict"

    def _verify(self) -> str:
        for _, error in Cache(self.root / "cache").verify():
            if error is not None:
                return f"verified {type(error).__name__}"
        return "verified"

    def _engine(self, hold: Sequence[str]) -> Callable[[str], None]:
        def engine(act: str) -> None:
            if act == "compile":
                with (self.root / "compiles").open("ab", buffering=0) as log:
                    log.write(b"%d\n" % os.getpid())
            if act in hold:
                say({"event": act})
                sys.stdin.readline()

        return engine

    def _pause(self) -> None:
        say({"event": "paused"})
        sys.stdin.readline()


def compiles(root: Path) -> list[int]:
    """The process of each compile that was begun, in order."""
    return [int(line) for line in (root / "compiles").read_text("ascii").split()]


HAMMER = ("compile", "compile", "compile", "late", "write", "write", "evict", "verify")


def hammer(root: Path, seconds: float, seed: int = 0) -> Counter[str]:
    """What eight processes on one directory saw in *seconds*, in a cache of one MiB."""
    (root / "state").mkdir(mode=0o700, exist_ok=True)
    seen: Counter[str] = Counter()
    with children(root, len(HAMMER), PENSTOCK_CACHE_LIMIT_MIB="1") as started:
        for number, (child, role) in enumerate(zip(started, HAMMER, strict=True)):
            child.send("hammer", role=role, seed=seed + number, seconds=seconds)
        for child in started:
            seen.update(child.hear()["seen"])
    return seen


def say(what: dict[str, object]) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201  # a line of the protocol


def main() -> None:
    worker = Worker(Path(sys.argv[1]))
    expected(layer(1))
    say({"event": "ready"})
    for line in sys.stdin:
        command = json.loads(line)
        try:
            say(getattr(worker, command.pop("do"))(**command))
        except Exception as error:  # noqa: BLE001  # the parent fails with it
            say({"error": repr(error)})


if __name__ == "__main__":
    main()
