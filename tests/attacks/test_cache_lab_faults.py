"""A fault at each file operation, of the cache and of the registry, of a whole compile with the lab
device.

Whatever fails, a compile that does not die answers right; afterwards a reader finds the old entry,
the new one, or a miss with its reason, and nothing stays open or lying about.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from penstock import knobs
from penstock.cache.info import CacheInfo
from penstock.errors import CacheError
from penstock.hal import PrepareConfig
from penstock.ir import Model
from penstock.testing.doubles import Crash, FaultyFiles, crash
from tests.conftest import open_descriptors
from tests.support_attacks import LabRig, Turn, config_of, flip_in, layer
from tests.support_sealed import FAULTS, TOKEN

OLD, NEW = layer(1), layer(2)
DAMAGE = {
    "SealBroken",
    "WrongLength",
    "ForeignEntry",
    "RolledBack",
    "RegistryMissing",
    "OtherVersion",
}
MISSES = {kind.__name__ for kind in CacheError.__subclasses__()}
LATER = 100_000.0
"""Seconds after which no process is waited for any more."""


@dataclass(frozen=True)
class Flow:
    """What a process does with a cache, *act*, after *prepare*, with *options* of the device."""

    prepare: Callable[[LabRig], object]
    act: Callable[[LabRig], object]
    options: dict[str, Any] = field(default_factory=dict)


def info(rig: LabRig) -> CacheInfo:
    return CacheInfo(rig.path, TOKEN)


@pytest.fixture(autouse=True)
def no_long_waits() -> Iterator[None]:
    """A lease that somebody forgot to give back fails a test rather than stop it."""
    with knobs.override(lease_seconds=5.0):
        yield


@cache
def key(model: Model) -> PrepareConfig:
    return config_of(model, TOKEN)


def nothing(_: LabRig) -> None:
    return


def compile_old(rig: LabRig) -> Turn:
    return rig.compile(OLD, info(rig))


def compile_new(rig: LabRig) -> Turn:
    return rig.compile(NEW, info(rig))


def run_often(rig: LabRig) -> Turn:
    return rig.compile(NEW, info(rig), runs=3)


def compile_and_damage(rig: LabRig) -> None:
    compile_new(rig)
    flip_in(rig.paths()[2], 2100)


FLOWS: dict[str, Flow] = {
    "cold": Flow(nothing, compile_new),
    "hit": Flow(compile_new, compile_new),
    "another model's entry replaced": Flow(compile_old, compile_new),
    "a damaged entry replaced": Flow(compile_and_damage, compile_new),
    "at the first run": Flow(nothing, compile_new, {"mode": "first_run"}),
    "improved by use": Flow(nothing, run_often, {"mode": "staged"}),
    "improved after a hit": Flow(compile_new, run_often, {"mode": "staged"}),
}


BROKEN_BEFORE = {"a damaged entry replaced"}
ONE_FAULT = ("another model's entry replaced", "at the first run", "improved after a hit")
"""The flows each of whose operations fails in one way here; in the other ways, as the other flows
do, in the soak.
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Directories to copy, one a flow; the key is made already."""
    made: dict[str, Path] = {}

    def root(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("prepared")
            prepare(made[name], name)
        return made[name]

    return root


def prepare(root: Path, name: str) -> None:
    rig = LabRig(root, device_options=FLOWS[name].options)
    rig.key_store.key()
    FLOWS[name].prepare(rig)


Breaking = Callable[[int, Callable[[], None]], tuple[dict[str, Any], Callable[[], bool]]]
"""From an operation's number and what it is to do: a rig's collaborators, and whether it came to
that.
"""


def break_files(at: int, fault: Callable[[], None]) -> tuple[dict[str, Any], Callable[[], bool]]:
    files = FaultyFiles(at, fault)
    return {"files": files}, lambda: len(files.log) > at


def break_registry(at: int, fault: Callable[[], None]) -> tuple[dict[str, Any], Callable[[], bool]]:
    files = FaultyFiles()

    def strike() -> None:
        files.dead = fault is crash  # the process dies, whichever file it was at
        fault()

    registry_files = FaultyFiles(at, strike)
    broken = {"files": files, "registry_files": registry_files}
    return broken, lambda: len(registry_files.log) > at


def fail_each(
    root: Path, source: Path, name: str, breaking: Breaking, faults: dict[str, Callable[[], None]]
) -> set[str]:
    """What readers found after a fault at operation 0, 1, ... of the flow; with several *faults*
    they take turns.
    """
    found: set[str] = set()
    for at in itertools.count():
        fault = list(faults)[at % len(faults)]
        broken, reached = breaking(at, faults[fault])
        try:
            outcome = attempt(root / f"{at}", source, name, broken, reached)
        except BaseException as error:
            error.add_note(f"after {fault} at operation {at} of {name}")
            raise
        if outcome is None:
            break
        found.add(outcome)
    return found


def attempt(
    root: Path, source: Path, name: str, broken: dict[str, Any], reached: Callable[[], bool]
) -> str | None:
    """Does the flow in a copy of *source*; what a reader finds there afterwards, None if the fault
    never came.
    """
    shutil.copytree(source, root)
    rig = LabRig(root, device_options=FLOWS[name].options)
    before, died = open_descriptors(), False
    try:
        FLOWS[name].act(replace(rig, **broken))
    except Crash:
        died = True
    try:
        if not reached():
            return None
        assert died or open_descriptors() <= before
        return found_after(rig, died or name in BROKEN_BEFORE)
    finally:
        shutil.rmtree(root)


def found_after(rig: LabRig, damage: bool) -> str:
    """What a reader finds, in words; then everybody recovers. With *damage* it may be half an
    entry, by its name.
    """
    old = rig.peek(key(OLD))
    new = rig.peek(key(NEW))
    for what in (old, new):
        assert what.startswith("hit ") or what in MISSES, what
        assert damage or what not in DAMAGE, what
    if {old[:4], new[:4]} & {"hit "}:
        # The one that hits is whole, so that the other model finds its token taken.
        assert "TokenCollision" in {old, new}, (old, new)
    turn = compile_new(rig)
    assert new in {f"{turn.outcome} {turn.reason}", turn.name}
    # A claim of this very process, which did not die of its crash, has to run out.
    later = replace(rig, clock=lambda: time.time() + LATER)
    if turn.not_saved:
        compile_new(later)
    assert compile_new(later).outcome == "hit"
    assert replace(rig, clock=lambda: time.time() + 2 * LATER).litter() == []
    return new


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_at_any_file_operation_of_a_hit_keeps_the_answer(
    tmp_path: Path, prepared: Callable[[str], Path], fault: str
) -> None:
    found = fail_each(tmp_path, prepared("hit"), "hit", break_files, {fault: FAULTS[fault]})
    assert found == {"hit baseline"}


@pytest.mark.parametrize("name", ONE_FAULT)
def test_a_fault_at_any_file_operation(
    tmp_path: Path, prepared: Callable[[str], Path], name: str
) -> None:
    found = fail_each(tmp_path, prepared(name), name, break_files, FAULTS)
    assert len(found) > 1
    assert any(outcome.startswith("hit ") for outcome in found)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("another model's entry replaced", {"hit baseline", "TokenCollision"}),
        ("at the first run", {"NotYetWritten"}),
    ],
)
def test_a_fault_at_any_file_operation_of_the_registry(
    tmp_path: Path, prepared: Callable[[str], Path], name: str, expected: set[str]
) -> None:
    found = fail_each(tmp_path, prepared(name), name, break_registry, FAULTS)
    assert expected <= found
