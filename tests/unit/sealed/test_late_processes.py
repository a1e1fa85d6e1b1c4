"""A late writer in another process, held at each of its file operations by a pipe."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from penstock.errors import CacheError
from penstock.sealed import SaveReport
from penstock.sealed.locks import lock, locked, unlock
from tests.support_sealed import TOKEN, Rig

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

ROOT = Path(__file__).resolve().parents[3]
OLD = (b"old program", b"old second"), (b"old weights",)
MINE = (b"my program, longer", b"my second"), (b"my weights",)
THEIRS = (b"their program", b"their second, longer"), (b"their weights",)

CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from penstock.testing.doubles import SteppedFiles
from tests.support_sealed import Rig
from tests.unit.sealed.test_late_processes import THEIRS

def before(name):
    print(name, flush=True)
    if not sys.stdin.readline():
        sys.exit(1)

for line in sys.stdin:
    root, expected = line.split()
    rig = Rig(Path(root), program=THEIRS[0], weights=THEIRS[1])
    with rig.late(bytes.fromhex(expected), files=SteppedFiles(before)) as writer:
        report = rig.write(writer, timeout=60.0)
    print("saved" if report.saved else report.reason, flush=True)
    print("done", flush=True)
"""


class Child:
    """A process that writes late, one file operation at a time."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(ROOT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.report = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.communicate()

    def begin(self, rig: Rig, expected: bytes | None) -> str:
        """Starts a late write; the name of the operation that it is about to do."""
        assert expected is not None
        return self._say(f"{rig.root} {expected.hex()}")

    def step(self) -> str:
        """Lets it do that operation; the name of the next, "" once it has reported."""
        return self._say("")

    def until(self, operation: str, times: int = 1) -> None:
        """Steps until it is about to do *operation* for the *times*-th time from now."""
        for _ in range(times):
            while (name := self.step()) != operation:
                assert name, f"it ended without {operation}"

    def finish(self) -> str:
        """Lets it run to its end; what it reports."""
        while self.step():
            continue
        return self.report

    def _say(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        name = self.process.stdout.readline().strip()
        if name != "saved" and ":" not in name:
            return name
        self.report = name
        # The descriptors' closing, then the end.
        for told in self.process.stdout:
            if told == "done\n":
                break
        return ""


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    with Child() as started:
        yield started


def rig(root: Path, payloads: tuple[tuple[bytes, ...], tuple[bytes, ...]]) -> Rig:
    root.mkdir(exist_ok=True)
    return Rig(root, program=payloads[0], weights=payloads[1])


def found(root: Path) -> object:
    try:
        loaded = rig(root, OLD).load()
    except CacheError as error:
        return type(error)
    payloads = tuple(map(bytes, loaded.model)), tuple(map(bytes, loaded.data))
    assert payloads in {OLD, MINE, THEIRS}, "a mixture"
    return payloads


def published(root: Path) -> bytes:
    report = rig(root, OLD).save()
    assert report.entry is not None
    return report.entry


@contextmanager
def shared_lock(root: Path) -> Iterator[bool]:
    with rig(root, OLD).lock() as opened, locked(opened.fd, exclusive=False, timeout=0) as held:
        yield held


# Where the other process stands: before an operation that it does for the given time.
BEFORE = [("try_lock", 1)]
WITHIN = [("truncate", 1), ("write", 4), ("sync", 3), ("write", 7), ("sync", 6), ("unlock", 1)]
PLACES = [("duplicate", 1), *BEFORE, *WITHIN]


def go_to(child: Child, root: Path, expected: bytes, operation: str, times: int) -> None:
    name = child.begin(rig(root, THEIRS), expected)
    if (name, times) != (operation, 1):
        child.until(operation, times)


def test_a_reader_while_another_process_writes_late(tmp_path: Path) -> None:
    """At each of its operations: behind the lock the old entry, nothing while it writes, then the
    new one.
    """
    seen: list[object] = []
    with Child() as child:
        name = child.begin(rig(tmp_path, THEIRS), published(tmp_path))
        names = [name]
        while True:
            with shared_lock(tmp_path) as held:
                seen.append(found(tmp_path) if held else None)
            if seen[-1] is None:
                # Without the lock, whatever is found has a name or is whole.
                found(tmp_path)
            if not (name := child.step()):
                break
            names.append(name)
        assert child.report == "saved"
    with shared_lock(tmp_path) as held:
        assert held
        seen.append(found(tmp_path))
    assert [s for i, s in enumerate(seen) if not i or seen[i - 1] != s] == [OLD, None, THEIRS]
    # From the moment that it has the lock until it gives it back.
    assert seen.index(None) == names.index("try_lock") + 1
    assert seen[names.index("unlock")] is None


def test_a_late_writer_waits_for_a_reader_in_another_process(tmp_path: Path, child: Child) -> None:
    expected = published(tmp_path)
    with shared_lock(tmp_path) as held:
        assert held
        assert child.begin(rig(tmp_path, THEIRS), expected) == "duplicate"
        child.until("try_lock", 3)
        assert found(tmp_path) == OLD
    assert child.finish() == "saved"
    assert found(tmp_path) == THEIRS


@pytest.mark.parametrize(("operation", "times"), PLACES)
def test_only_one_of_two_late_writers_writes(
    tmp_path: Path, child: Child, operation: str, times: int
) -> None:
    expected = published(tmp_path)
    mine = rig(tmp_path, MINE)
    go_to(child, tmp_path, expected, operation, times)
    with mine.late(expected) as writer:
        report = mine.write(writer)
        theirs = child.finish()
        if (operation, times) in WITHIN:
            assert (report.reason or "").startswith("Unreadable: the entry is in use")
            assert theirs == "saved"
            late: SaveReport = mine.write(writer)
            assert (late.reason or "").startswith("ForeignEntry: ")
            assert found(tmp_path) == THEIRS
        else:
            assert report.saved
            assert theirs.startswith("ForeignEntry: ")
            assert found(tmp_path) == MINE
    assert len(mine.registry().rows()) == 1


@pytest.mark.parametrize(("operation", "times"), PLACES[1:])
def test_a_late_write_and_a_publication_by_rename(
    tmp_path: Path, child: Child, operation: str, times: int
) -> None:
    """Whichever has the lock first: what was published stands, and the late writer's next write is
    dropped.
    """
    expected = published(tmp_path)
    mine = rig(tmp_path, MINE)
    assert mine.save("new").saved
    go_to(child, tmp_path, expected, operation, times)
    with mine.lock() as opened:
        held = lock(opened.fd, exclusive=True, timeout=0)
        assert held is ((operation, times) not in WITHIN)
        if not held:
            assert child.finish() == "saved"
            assert found(tmp_path) == THEIRS
            assert lock(opened.fd, exclusive=True, timeout=0)
        replaced = mine.entry()
        assert replaced is not None
        for source, target in zip(mine.paths("new"), mine.paths(), strict=True):
            source.replace(target)
        mine.seal().forget(TOKEN, replaced)
        unlock(opened.fd)
    if held:
        assert child.finish().startswith("NoEntry: ")
    assert found(tmp_path) == MINE
    assert len(mine.registry().rows()) == 1


@pytest.mark.parametrize(("operation", "times"), WITHIN)
def test_a_late_writer_that_is_killed_leaves_the_lock_and_no_mixture(
    tmp_path: Path, operation: str, times: int
) -> None:
    expected = published(tmp_path)
    with Child() as child:
        go_to(child, tmp_path, expected, operation, times)
        with shared_lock(tmp_path) as held:
            assert not held
    with shared_lock(tmp_path) as held:
        assert held
        outcome = found(tmp_path)
    if operation == "truncate":
        assert outcome == OLD
    elif operation == "unlock" or (operation, times) == ("sync", 6):
        assert outcome == THEIRS
    else:
        assert isinstance(outcome, type)
    mine = rig(tmp_path, MINE)
    assert mine.saved()
    assert found(tmp_path) == MINE
