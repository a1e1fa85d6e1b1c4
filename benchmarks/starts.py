"""Starts processes: `Start` is one program of `benchmarks.starting`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from benchmarks.measuring import ROOT

LONGEST_S: Final = 300


@dataclass(frozen=True, slots=True)
class Start:
    """One program, its arguments, extra *environment* variables, and *told*, its input."""

    program: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    told: str = ""

    def run(self) -> dict[str, Any]:
        """What the program printed. `wall_ms` counts milliseconds from before the process was
        created to its first output.
        """
        began = time.perf_counter()
        done = subprocess.run(
            self.command(),
            check=False,
            capture_output=True,
            text=True,
            input=self.told,
            env=self.surroundings(),
            timeout=LONGEST_S,
        )
        if done.returncode:
            raise RuntimeError(f"{self.program} failed: {done.stderr[-2000:]}")
        told = _read(done.stdout)
        return {**told, "wall_ms": (told["clock"] - began) * 1000}

    def command(self, *more: str) -> list[str]:
        code = f"from benchmarks.starting import {self.program} as p; p(*{self.arguments!r})"
        return [sys.executable, "-c", code, *more]

    def surroundings(self) -> dict[str, str]:
        """The process environment. Python keeps compiled modules, as in an installed package."""
        kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        path = os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])])
        return {**kept, "PYTHONPATH": path, **self.environment}


class Held:
    """A process that keeps what it has loaded until it is released."""

    def __init__(self, start: Start) -> None:
        self._process = subprocess.Popen(
            start.command("hold"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=start.surroundings(),
        )
        assert self._process.stdout is not None
        self.found = _read(self._process.stdout.readline())

    def memory(self) -> dict[str, float]:
        """MiB of private memory (`private`), and its proportional share of all memory (`pss`)."""
        text = Path(f"/proc/{self._process.pid}/smaps_rollup").read_text("ascii")
        kib = {
            line.split(":")[0]: int(line.split()[1])
            for line in text.splitlines()
            if line.endswith("kB")
        }
        private = kib["Private_Clean"] + kib["Private_Dirty"]
        return {"private": private / 1024, "pss": kib["Pss"] / 1024}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def _read(printed: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found
