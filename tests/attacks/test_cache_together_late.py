"""Late compilation across processes: what one writes after its preparation, another reads, waits
for or takes over.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cache import Cache
from tests.support_together import Child, Pool, children, compiles


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool(3)
    yield made
    made.kill()


@pytest.fixture
def three(tmp_path: Path, pool: Pool) -> Iterator[list[Child]]:
    """Three processes; what they left open is closed after the test."""
    started = pool.at(tmp_path)
    yield started
    for child in started:
        if child.process.poll() is None:
            child.ask("close")


def test_next_process_hits_the_program_of_a_first_run(tmp_path: Path, three: list[Child]) -> None:
    first, second, third = three
    opened = first.ask("open", mode="first_run")
    assert (opened["outcome"], opened["compiles"]) == ("miss", 0)
    assert first.ask("run") == {"right": True, "compiles": 1, "operations": 0}
    assert second.compiled(mode="first_run") == ("hit", "optimised", 0)
    assert third.compiled() == ("hit", "optimised", 0)
    assert compiles(tmp_path) == [first.pid]


def test_next_process_hits_the_program_that_use_improved(
    tmp_path: Path, three: list[Child]
) -> None:
    first, second, third = three
    assert first.ask("open", mode="staged")["outcome"] == "miss"
    assert second.compiled(mode="staged") == ("hit", "baseline", 0)
    assert first.ask("run", times=3)["compiles"] == 2
    assert second.compiled(mode="staged") == ("hit", "optimised", 0)
    assert third.compiled() == ("hit", "optimised", 0)
    assert compiles(tmp_path) == [first.pid, first.pid]


def test_use_after_a_hit_improves_the_entry(tmp_path: Path, three: list[Child]) -> None:
    first, second, third = three
    assert first.compiled(mode="staged")[:1] == ("miss",)
    assert second.ask("open", mode="staged")["reason"] == "baseline"
    assert second.ask("run", times=3)["compiles"] == 1
    assert third.compiled(mode="staged") == ("hit", "optimised", 0)


def test_a_process_that_improved_meanwhile_reads_what_another_has_written(
    tmp_path: Path, three: list[Child]
) -> None:
    first, second, third = three
    assert first.ask("open", mode="staged")["outcome"] == "miss"
    assert second.ask("open", mode="staged")["outcome"] == "hit"
    assert first.ask("run", times=3)["compiles"] == 2
    assert second.ask("run", times=3) == {"right": True, "compiles": 0, "operations": 0}
    assert third.compiled() == ("hit", "optimised", 0)


def test_second_process_compiles_while_the_late_writer_lives(
    tmp_path: Path, three: list[Child]
) -> None:
    first, second, third = three
    assert first.ask("open", mode="first_run")["outcome"] == "miss"
    found = second.ask("compile", mode="first_run")
    assert (found["outcome"], found["compiles"], found["right"]) == ("miss", 1, True)
    assert found["reason"] == (
        f"NotYetWritten: the driver of process {first.pid} has not written the entry yet"
    )
    assert f"process {first.pid}" in found["not_saved"]
    assert first.ask("run")["right"]
    assert third.compiled() == ("hit", "optimised", 0)
    assert compiles(tmp_path) == [second.pid, first.pid]


def test_a_dead_writer_s_entry_is_taken_over(tmp_path: Path, three: list[Child]) -> None:
    first, second, third = three
    assert first.ask("open", mode="first_run")["outcome"] == "miss"
    first.kill()
    outcome, reason, count = second.compiled(mode="first_run")
    assert (outcome, count) == ("miss", 1)
    assert reason == ("NotYetWritten: the entry is empty, and nobody is going to write it any more")
    assert third.compiled() == ("hit", "optimised", 0)


def test_a_writer_that_gave_up_is_not_waited_for(tmp_path: Path, three: list[Child]) -> None:
    """It closed what it had compiled without a run; the process lives on."""
    first, second, third = three
    assert first.ask("open", mode="first_run")["outcome"] == "miss"
    first.ask("close")
    found = second.ask("compile")
    assert (found["outcome"], found["compiles"], found["not_saved"]) == ("miss", 1, "")
    assert third.compiled() == ("hit", "baseline", 0)


def test_a_writer_past_its_deadline_is_taken_over_and_its_write_dropped(tmp_path: Path) -> None:
    with children(tmp_path, 3, PENSTOCK_LATE_WRITE_SECONDS="0.3") as (first, second, third):
        begun = time.monotonic()
        assert first.ask("open", mode="first_run")["outcome"] == "miss"
        found = second.ask("compile")
        while found["not_saved"]:
            assert f"process {first.pid}" in found["not_saved"]
            assert time.monotonic() - begun < 30
            found = second.ask("compile")
        assert time.monotonic() - begun > 0.3
        assert (found["outcome"], found["compiles"]) == ("miss", 1)
        assert third.compiled() == ("hit", "baseline", 0)
        assert first.ask("run") == {"right": True, "compiles": 1, "operations": 0}
        assert third.compiled() == ("hit", "baseline", 0)


def test_eight_that_find_it_empty_take_it_over_once(tmp_path: Path) -> None:
    with children(tmp_path, 8) as started:
        dead, *others = started
        dead.ask("open", mode="first_run")
        dead.kill()
        for child in others:
            child.send("compile")
        found = [child.hear() for child in others]
        assert all(answer["right"] for answer in found)
        assert sorted(answer["outcome"] for answer in found) == ["hit"] * 6 + ["miss"]
        assert len(compiles(tmp_path)) == 1


def paused_at(child: Child, folder: str, operation: int) -> bool:
    """Opens a baseline in *child* and lets it run up to that operation of its late write; False
    beyond the last.
    """
    child.ask("open", mode="staged", folder=folder, quick=True)
    assert child.ask("run", times=2)["right"]
    child.send("run", pause=operation)
    heard = child.hear()
    if heard == {"event": "paused"}:
        return True
    assert heard["right"]
    return False


def test_a_late_write_against_a_read(three: list[Child]) -> None:
    """The writer waits before each of its file operations in turn until a reader is told to begin:
    the reader gets the old form, or the new one, and the writer is in nobody's way.
    """
    writer, reader, _ = three
    seen = set()
    for operation in range(200):
        folder = f"at {operation}"
        paused = paused_at(writer, folder, operation)
        reader.send("compile", folder=folder, quick=True)
        found = reader.hear() if operation == 0 else None
        if paused:
            writer.send()
            assert writer.hear()["right"]
        found = found or reader.hear()
        assert (found["outcome"], found["compiles"], found["right"]) == ("hit", 0, True), found
        seen.add(found["reason"])
        # A run that met the reader's lock left the entry as it was: the next one writes it.
        assert writer.ask("run", times=1)["right"]
        writer.ask("close")
        assert reader.compiled(folder=folder, quick=True) == ("hit", "optimised", 0)
        if not paused:
            break
    else:
        pytest.fail("a late write has more operations than this test counts")
    assert operation > 30
    assert seen == {"baseline", "optimised"}


def test_a_late_write_against_a_late_write(three: list[Child]) -> None:
    """Two improve one entry: the first waits before each of its operations while the second runs as
    far as it can.
    """
    written = set()
    first, second, reader = three
    for operation in range(200):
        folder = f"at {operation}"
        assert reader.compiled(folder=folder, quick=True)[0] == "miss"
        second.ask("open", mode="staged", folder=folder, quick=True)
        paused = paused_at(first, folder, operation)
        second.send("run", times=3)
        if paused:
            first.send()
            assert first.hear()["right"]
        found = second.hear()
        assert found["right"]
        written.add(found["compiles"])
        first.ask("close")
        second.ask("close")
        assert reader.compiled(folder=folder, quick=True) == ("hit", "optimised", 0)
        if not paused:
            break
    else:
        pytest.fail("a late write has more operations than this test counts")
    assert operation > 30
    assert written <= {0, 1}
    assert 0 in written


def test_late_writers_leave_no_files_or_locks(
    tmp_path: Path, three: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / "state"))
    first, second, third = three
    first.ask("open", mode="first_run")
    first.ask("run")
    second.ask("open", model=2, mode="first_run")
    second.kill()
    third.ask("open", model=3, mode="first_run")
    cache = Cache(tmp_path / "cache")
    cache.gc()
    assert len(cache.entries()) == 2
    third.ask("close")
    first.ask("close")
    cache.clear()
    assert cache.entries() == []
