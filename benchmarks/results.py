"""The results of a run of races, as JSON for programs and as Markdown.

A run takes hours and may be interrupted. Each race is written as soon as it has ended. A later run
with the same file, machine, versions and code resumes there.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks import conversion, machine
from benchmarks.engine_table import document
from benchmarks.standings import Race

Document: TypeAlias = Callable[[Mapping[str, Any], Mapping[Any, Race]], Iterable[str]]


class OtherRun(Exception):  # it names what the file is
    """The file holds races of another machine, other versions or other code."""


class Results:
    """The races so far, in *place*.json and *place*.md; None keeps them in memory only.

    *written* makes the lines of the Markdown.
    """

    def __init__(self, place: Path | None, rounds: int, written: Document = document) -> None:
        self._place, self._written = place, written
        self.setting = setting(rounds)
        self.races: dict[tuple[str, int, str], Race] = {}
        if place is not None and place.with_suffix(".json").exists():
            self._read(place.with_suffix(".json"))

    def _read(self, file: Path) -> None:
        written = json.loads(file.read_bytes())
        if written["setting"] != self.setting:
            differing = [k for k in self.setting if written["setting"].get(k) != self.setting[k]]
            raise OtherRun(
                f"{file} holds races of another run ({', '.join(differing)} differ): "
                "give another file, or remove it"
            )
        for race in written["races"]:
            self.races[key(race)] = race

    def add(self, race: Race) -> None:
        """Adds a race and rewrites both files atomically."""
        race["at"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.races[key(race)] = race
        if self._place is None:
            return
        self._place.parent.mkdir(parents=True, exist_ok=True)
        races = ",\n".join(json.dumps(race) for race in self.races.values())
        told = json.dumps(self.setting, indent=1)
        whole = f'{{"setting": {told}, "races": [\n{races}\n]}}\n'
        replace(self._place.with_suffix(".json"), whole)
        replace(
            self._place.with_suffix(".md"),
            "\n".join(self._written(self.setting, self.races)) + "\n",
        )


def key(race: Race) -> tuple[str, int, str]:
    return race["accuracy"], race["threads"], race["id"]


def replace(file: Path, text: str) -> None:
    beside = file.with_suffix(f"{file.suffix}.new")
    beside.write_text(text, "utf-8")
    beside.replace(file)


def setting(rounds: int) -> dict[str, Any]:
    """The machine, versions, code and rounds. All races of one file share them."""
    return {
        "processor": machine.processor(),
        "instruction sets": machine.instruction_sets(),
        "cores": os.cpu_count(),
        "memory": machine.memory(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {**machine.installed(), **conversion.versions()},
        "code": machine.code(),
        "rounds": rounds,
    }
