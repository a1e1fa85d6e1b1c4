"""Processes that compile through one cache directory at once, with the lab device: one compile a
machine, right answers.
"""

from __future__ import annotations

import selectors
from pathlib import Path

import pytest

from penstock.cache import Cache
from penstock.cache.info import CacheInfo
from penstock.errors import CacheError
from tests.support_attacks import LabRig, layer
from tests.support_sealed import TOKEN
from tests.support_together import Child, children, compiles, hammer

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

PROCESSES = 8
SECONDS = 5.0
MISSES = {kind.__name__ for kind in CacheError.__subclasses__()}


def begin(started: list[Child]) -> tuple[Child, list[Child]]:
    """Lets all start cold; who compiles and waits in the middle of it, and the others, who wait for
    the lease.
    """
    for child in started:
        child.send("compile", hold=["lease", "compile"])
    events = [(child.hear()["event"], child) for child in started]
    (compiler,) = [child for event, child in events if event == "compile"]
    others = [child for event, child in events if event == "lease"]
    assert len(others) == len(started) - 1
    return compiler, others


def next_compiler(waiting: list[Child]) -> tuple[Child, list[Child]]:
    """The one process of those that has begun to compile."""
    with selectors.DefaultSelector() as outputs:
        for child in waiting:
            assert child.process.stdout is not None
            outputs.register(child.process.stdout, selectors.EVENT_READ, child)
        ((ready, _),) = outputs.select(60)
    compiler: Child = ready.data
    assert compiler.hear() == {"event": "compile"}
    return compiler, [child for child in waiting if child is not compiler]


def finish(root: Path, compiler: Child, others: list[Child]) -> None:
    """Lets the compile end: one miss, and hits for all others."""
    compiler.send()
    made = compiler.hear()
    assert (made["outcome"], made["compiles"], made["right"]) == ("miss", 1, True)
    assert made["not_saved"] == ""
    for child in others:
        found = child.hear()
        assert (found["outcome"], found["compiles"], found["right"]) == ("hit", 0, True), found
    assert compiles(root)[-1] == compiler.pid


def test_eight_that_start_cold_compile_once(tmp_path: Path) -> None:
    with children(tmp_path, PROCESSES) as started:
        compiler, others = begin(started)
        finish(tmp_path, compiler, others)
        assert len(compiles(tmp_path)) == 1
        for child in started:
            assert child.compiled() == ("hit", "baseline", 0)
    assert len(compiles(tmp_path)) == 1


def test_eight_that_are_not_held_compile_once(tmp_path: Path) -> None:
    with children(tmp_path, PROCESSES) as started:
        for child in started:
            child.send("compile", model=7)
        heard = [child.hear() for child in started]
    assert all(found["right"] for found in heard)
    assert sorted(found["outcome"] for found in heard) == ["hit"] * (PROCESSES - 1) + ["miss"]
    assert len(compiles(tmp_path)) == 1


def test_another_process_takes_over_from_a_killed_one(tmp_path: Path) -> None:
    """The first three die in the middle of their compiles."""
    with children(tmp_path, PROCESSES) as started:
        compiler, others = begin(started)
        for deaths in range(1, 4):
            assert len(compiles(tmp_path)) == deaths
            compiler.kill()
            compiler, others = next_compiler(others)
        finish(tmp_path, compiler, others)
        assert len(set(compiles(tmp_path))) == len(compiles(tmp_path)) == 4
    cache = tmp_path / "cache"
    assert [p for p in cache.iterdir() if p.name.endswith(".tmp")]
    Cache(cache).gc()
    left = sorted(p.name[64:] for p in cache.iterdir())
    assert left == [".json", "10", "11", "20"]


def kill_at(root: Path, worker: Child, reader: Child, mode: str, at: int) -> bool:
    """Kills a process that replaces another model's entry at its file operation *at*; whether it
    came to that.

    Nobody waits for the dead: the next process compiles at once, unless it finds the new entry.
    """
    rig = LabRig(root / f"{at}")
    rig.compile(layer(1), CacheInfo(rig.path, TOKEN))
    died = worker.ask("die", at=at, folder=f"{at}", mode=mode, model=2)["died"]
    command = {"model": 2, "token": True, "folder": f"{at}", "quick": True}
    found = reader.ask("compile", **command)
    assert found["right"]
    assert found["not_saved"] == ""
    assert found["outcome"] == "hit" or found["reason"].partition(":")[0] in MISSES, found
    assert reader.compiled(**command)[0] == "hit"
    assert rig.litter() == []
    return bool(died)


@pytest.mark.parametrize(("mode", "first"), [("now", 0), ("first_run", 3), ("staged", 5)])
def test_a_process_killed_at_its_file_operations(tmp_path: Path, mode: str, first: int) -> None:
    """At every sixteenth, from *first* on; at each in the soak."""
    with children(tmp_path, 2) as (worker, reader):
        for at in range(first, 1000, 16):
            if not kill_at(tmp_path, worker, reader, mode, at):
                break
        assert at > 100


def test_eight_hammer_one_directory(tmp_path: Path) -> None:
    """Writers, late writers, readers, an evictor and a verifier: no wrong answer, no exception."""
    seen = hammer(tmp_path, SECONDS)
    assert seen["wrong"] == 0
    assert seen["hit baseline"] > 0
    assert seen["hit optimised"] > 0
    assert seen["NoEntry"] > 0
    assert seen["TokenCollision"] > 0
    assert seen["evicted"] > 0
    assert seen["verified"] > 0
    known = {"SealBroken", "WrongLength", "OtherVersion", "RegistryMissing", "NotRegularFile"}
    assert not known & set(seen), seen
    cache = Cache(tmp_path / "cache")
    cache.clear()
    assert cache.entries() == []
    assert list((tmp_path / "cache").iterdir()) == []
