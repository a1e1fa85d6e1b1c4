"""Who may compile: waiting, giving up, dying, and drivers that write late."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from penstock import knobs
from penstock.cache.claim import Claim
from penstock.cache.directory import CacheDirectory
from penstock.cache.lease import Lease
from penstock.cache.naming import lease_name
from penstock.errors import Cancelled, NoEntry, NotYetWritten
from penstock.hal import CancelToken
from penstock.processes import boot
from penstock.sealed import LateWriter
from penstock.sealed.locks import lock
from penstock.testing.doubles import FaultyFiles, failing
from tests.support_cache import NEEDED, Bench, payloads_of, token_of

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

TOKEN = token_of(1)
TEXTS = ("old", "new", "late")
ROOT = Path(__file__).resolve().parents[3]
MS = 1_000_000

HOLDER = """
import sys
from pathlib import Path
from tests.support_cache import Bench
root, token = Path(sys.argv[1]), bytes.fromhex(sys.argv[2])
import time
bench = Bench(root, clock=time.time)
lease = bench.directory.lease(token)
files = lease.create((2, 1))
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, clock=time.time)


@contextmanager
def held_elsewhere(bench: Bench) -> Iterator[subprocess.Popen[str]]:
    """Another process holds the lease, with three temporary files made."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(bench.root), TOKEN.hex()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def leased(directory: CacheDirectory, wait_ms: float | None = None) -> Lease:
    lease = directory.lease(TOKEN, wait_ns=None if wait_ms is None else int(wait_ms * MS))
    assert lease is not None
    return lease


def test_one_at_a_time_in_one_process(bench: Bench) -> None:
    with leased(bench.directory) as lease:
        assert not lease.waited
        assert bench.directory.lease(TOKEN, wait_ns=0) is None
        other = bench.directory.lease(token_of(2), wait_ns=0)
        assert other is not None
        other.close()
    with leased(bench.directory, 0) as lease:
        assert not lease.waited


def test_waiting_lease_is_granted_and_marked_as_waited(bench: Bench) -> None:
    first = leased(bench.directory)
    outcome: list[Lease] = []
    waiting = threading.Thread(target=lambda: outcome.append(leased(bench.directory)))
    waiting.start()
    time.sleep(0.05)
    assert outcome == []
    bench.compile_under(first, TOKEN, "old")
    first.close()
    waiting.join(10)
    with outcome[0] as second:
        assert second.waited
        assert bench.load(TOKEN, TEXTS) == "old"


def test_lease_after_a_publication_asks_to_look_again(bench: Bench) -> None:
    """The other's lease came and went between the look and the lease: nobody was waited for."""
    directory = bench.directory
    for text in ("old", "new"):
        with suppress(NoEntry):
            directory.open(TOKEN, NEEDED).close()
        bench.compile(TOKEN, text)
        with leased(directory, 0) as lease:
            assert lease.waited
    directory.open(TOKEN, NEEDED).close()
    with leased(directory, 0) as lease:
        assert not lease.waited


def test_many_threads_take_turns(bench: Bench) -> None:
    holders, most, turns = 0, 0, 0
    guard = threading.Lock()

    def take_a_turn() -> None:
        nonlocal holders, most, turns
        with leased(bench.directory):
            with guard:
                holders += 1
                most = max(most, holders)
            time.sleep(0.002)
            with guard:
                holders -= 1
                turns += 1

    threads = [threading.Thread(target=take_a_turn) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (most, turns) == (1, 12)
    assert bench.names() == []


def test_wait_for_a_lease_ends_at_its_limit(bench: Bench) -> None:
    with leased(bench.directory):
        began = time.monotonic()
        assert bench.directory.lease(TOKEN, wait_ns=50 * MS) is None
        assert 0.05 <= time.monotonic() - began < 5


def test_a_wait_ends_at_the_deadline_of_the_holder(bench: Bench) -> None:
    with leased(bench.directory), knobs.override(lease_seconds=0.1):
        began = time.monotonic()
        assert bench.directory.lease(TOKEN) is None
        assert 0.1 <= time.monotonic() - began < 5


def test_an_expired_lease_is_not_waited_for(bench: Bench) -> None:
    """It compiles still, and publishes in the end; the others go on without saving."""
    with knobs.override(lease_seconds=0.05):
        first = leased(bench.directory)
    with first:
        time.sleep(0.06)
        began = time.monotonic()
        assert bench.directory.lease(TOKEN) is None
        assert time.monotonic() - began < 30 < knobs.lease_seconds()
        bench.compile_under(first, TOKEN, "old")
    assert bench.load(TOKEN, TEXTS) == "old"


@pytest.mark.parametrize("set_by", [-1e6, 1e6])
@pytest.mark.skipif(not boot(), reason="the platform does not name its boots")
def test_a_wall_clock_that_is_set_ends_no_wait(bench: Bench, set_by: float) -> None:
    """The holder lives, and its time has not come."""
    bench.uptime = time.time
    with leased(bench.directory):
        bench.clock = lambda: time.time() + set_by
        began = time.monotonic()
        assert bench.directory.lease(TOKEN, wait_ns=1500 * MS) is None
        assert time.monotonic() - began >= 1.5


def test_a_lease_of_somebody_unknown_is_not_waited_for_long(bench: Bench) -> None:
    """Another program of this user has locked the file and says nothing."""
    leased(bench.directory).close()
    fd = os.open(bench.lock_file(lease_name(TOKEN)), os.O_RDWR | os.O_CREAT)
    try:
        assert lock(fd, exclusive=True, timeout=0)
        directory, began = bench.directory, time.monotonic()
        assert directory.lease(TOKEN) is None
        assert time.monotonic() - began < 30 < knobs.lease_seconds()
        assert "does not say which process" in directory.why_not_leased(TOKEN)
    finally:
        os.close(fd)


def test_why_a_wait_ended_is_said(bench: Bench) -> None:
    directory, me = bench.directory, f"process {os.getpid()}"
    with knobs.override(lease_seconds=0.05):
        first = leased(bench.directory)
    with first:
        assert directory.lease(TOKEN, wait_ns=60 * MS) is None
        assert "compiling it" in directory.why_not_leased(TOKEN)
        assert directory.lease(TOKEN) is None
        longer = f"{me} has been compiling it for longer than the 0.05 s that it had"
        assert directory.why_not_leased(TOKEN) == longer
        path = bench.lock_file(lease_name(TOKEN))
        content = path.read_bytes()
        path.write_bytes(content.replace(b'"started":"', b'"started":"9'))
        assert directory.lease(TOKEN) is None
        assert "has ended" in directory.why_not_leased(TOKEN)
    with leased(bench.directory), knobs.override(lease_seconds=0.1):
        assert directory.lease(TOKEN) is None
        said = f"{me} was still compiling it after a wait of 0.1 s"
        assert directory.why_not_leased(TOKEN) == said
    assert directory.why_not_leased(token_of(2)) == ""


def test_an_absurd_claim_of_a_late_writer_ends(bench: Bench) -> None:
    bench.compile_later(TOKEN).close()
    claim = Claim(pid=1, started="", boot="", namespace="", until=1e300, seconds=1e300, late=True)
    claim = claim.late_writers(*NEEDED, marked=False)
    bench.lock_file(lease_name(TOKEN)).write_bytes(claim.pack())
    with leased(bench.directory, 0) as lease:
        assert lease.late_writer() is None


def test_a_claim_that_cannot_be_read_does_not_end_a_wait(bench: Bench) -> None:
    with leased(bench.directory):
        bench.files = FaultyFiles(0, failing(errno.EIO), only=["read_into"])
        assert bench.directory.lease(TOKEN, wait_ns=50 * MS) is None
        assert len(bench.files.log) > 1


@pytest.mark.parametrize("before", [True, False])
def test_a_wait_is_cancelled_soon(bench: Bench, before: bool) -> None:
    cancel, asked = CancelToken(), time.monotonic()

    def ask() -> None:
        nonlocal asked
        asked = time.monotonic()
        cancel.set()

    with leased(bench.directory):
        timer = threading.Timer(0 if before else 0.05, ask)
        timer.start()
        if before:
            timer.join()
        with pytest.raises(Cancelled):
            bench.directory.lease(TOKEN, cancel=cancel)
        assert time.monotonic() - asked < 0.1
        timer.join()


def test_another_process_excludes_and_its_death_hands_over(bench: Bench) -> None:
    with held_elsewhere(bench) as process:
        assert bench.directory.lease(TOKEN, wait_ns=0) is None
        killer = threading.Timer(0.05, process.kill)
        killer.start()
        with leased(bench.directory) as lease:
            assert lease.waited
            assert len(bench.temporaries()) == 3
            bench.compile_under(lease, TOKEN, "new")
        killer.join()
    assert bench.load(TOKEN, TEXTS) == "new"
    bench.compile(token_of(2), "old")
    assert bench.temporaries() == []


def test_the_temporaries_of_a_living_process_stay(bench: Bench) -> None:
    with held_elsewhere(bench):
        bench.compile(token_of(2), "old")
        assert len(bench.temporaries()) == 3
    bench.compile(token_of(2), "old")
    assert bench.temporaries() == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform does not fork")
def test_a_child_that_inherits_a_lease_does_not_keep_it(bench: Bench) -> None:
    lease = leased(bench.directory)
    done, begin = os.pipe()
    child = os.fork()
    if not child:
        os.close(begin)
        os.read(done, 1)
        os._exit(0)
    try:
        lease.close()
        leased(bench.directory, 0).close()
    finally:
        os.close(begin)
        os.close(done)
        os.waitpid(child, 0)


def test_a_lease_that_somebody_removed_takes_no_other_with_it(bench: Bench) -> None:
    """`rm` while a process compiles: the next one makes a lease file of its own."""
    first = leased(bench.directory)
    path = bench.lock_file(lease_name(TOKEN))
    path.unlink()
    with leased(bench.directory, 0):
        first.close()
        assert bench.directory.lease(TOKEN, wait_ns=0) is None


def test_a_claim_left_by_a_dead_process_is_no_obstacle(bench: Bench) -> None:
    with leased(bench.directory):
        path = bench.lock_file(lease_name(TOKEN))
        content = path.read_bytes()
    claim = Claim.unpack(content)
    assert claim is not None
    assert claim.pid == os.getpid()
    assert not path.exists()
    path.write_bytes(content.replace(b'"pid":', b'"pid":9999'))
    leased(bench.directory, 0).close()


def test_bytes_that_are_no_claim_are_no_obstacle(bench: Bench) -> None:
    leased(bench.directory).close()
    bench.lock_file(lease_name(TOKEN)).write_bytes(b"{" * 10_000)
    with leased(bench.directory, 0) as lease:
        assert lease.late_writer() is None


def write(writer: LateWriter) -> str | None:
    *model, data = payloads_of("late")
    return writer.write(model=model, data=[data]).reason


def test_a_late_writer_keeps_its_entry_until_it_has_written(bench: Bench) -> None:
    writer = bench.compile_later(TOKEN)
    assert bench.load(TOKEN, TEXTS) is NotYetWritten
    with leased(bench.directory, 0) as lease:
        assert lease.late_writer() == f"process {os.getpid()}"
    with leased(bench.directory, 0) as lease:
        assert lease.late_writer() is not None
    assert write(writer) is None
    assert bench.load(TOKEN, TEXTS) == "late"
    with leased(bench.directory, 0) as lease:
        assert lease.late_writer() is None
    writer.close()
    assert ".lease" not in bench.lock_files()


@pytest.mark.skipif(sys.platform != "linux", reason="the platform has no marks on open files")
def test_the_claim_of_a_late_writer_that_is_closed_is_swept(bench: Bench) -> None:
    writer = bench.compile_later(TOKEN)
    bench.compile(token_of(2), "old")
    assert bench.lock_files().count(".lease") == 1
    assert write(writer) is None
    writer.close()
    bench.compile(token_of(2), "old")
    assert ".lease" not in bench.lock_files()


def test_the_claim_of_a_late_writer_whose_time_is_over_is_swept(bench: Bench) -> None:
    with knobs.override(late_write_seconds=0.05):
        writer = bench.compile_later(TOKEN)
    time.sleep(0.06)
    bench.compile(token_of(2), "old")
    assert ".lease" not in bench.lock_files()
    writer.close()


def test_a_late_writer_has_a_deadline(bench: Bench) -> None:
    with knobs.override(late_write_seconds=0.05):
        writer = bench.compile_later(TOKEN)
    time.sleep(0.06)
    with leased(bench.directory, 0) as lease:
        assert lease.late_writer() is None
        bench.compile_under(lease, TOKEN, "new")
    assert str(write(writer)).startswith("NoEntry: ")
    assert bench.load(TOKEN, TEXTS) == "new"
    writer.close()


def test_a_dead_late_writer_is_not_waited_for(bench: Bench) -> None:
    writer = bench.compile_later(TOKEN)
    path = bench.lock_file(lease_name(TOKEN))
    path.write_bytes(path.read_bytes().replace(b'"pid":', b'"pid":9999'))
    with leased(bench.directory, 0) as lease:
        assert lease.late_writer() is None
    writer.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the platform has no marks on open files")
def test_a_late_writer_that_is_closed_is_not_waited_for(bench: Bench) -> None:
    """Nor one of a process that lives on, whose time has not come."""
    writer = bench.compile_later(TOKEN)
    with leased(bench.directory, 0) as lease:
        assert lease.late_writer() is not None
    writer.close()
    with pytest.raises(NotYetWritten, match="nobody is going to"):
        bench.directory.open(TOKEN, NEEDED)
    with leased(bench.directory, 0) as lease:
        assert lease.late_writer() is None


def test_unmarked_lease_of_a_living_process_is_waited_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cache.claim._SUPPORTED", False)
    bench.compile_later(TOKEN).close()
    with leased(bench.directory, 0) as lease:
        assert lease.late_writer() is not None


def test_an_awaited_entry_can_be_replaced_all_the_same(bench: Bench) -> None:
    writer = bench.compile_later(TOKEN)
    with leased(bench.directory, 0) as lease:
        assert lease.late_writer() is not None
        bench.compile_under(lease, TOKEN, "new")
    assert str(write(writer)).startswith("NoEntry: ")
    assert bench.load(TOKEN, TEXTS) == "new"
    writer.close()


def test_a_removed_entry_has_no_late_writer(bench: Bench) -> None:
    writer = bench.compile_later(TOKEN)
    for path in bench.path.glob("*[12][01]"):
        path.unlink()
    assert bench.load(TOKEN, TEXTS) is NoEntry
    with leased(bench.directory, 0) as lease:
        assert lease.late_writer() is None
    writer.close()
