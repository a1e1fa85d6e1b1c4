"""Compiles at the same time: threads that wait for each other, runs that do not wait, programs that
end.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock import errors, hal
from penstock.cache.directory import CacheDirectory
from penstock.ir import Model
from penstock.partitioning import Policy
from tests.support_caching import CachingDevice
from tests.support_devices import NumpyDevice
from tests.unit.compilation.caching import MODEL, X, compiled, outcome
from tests.unit.partitioning.models import chain

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

ROOT = Path(__file__).resolve().parents[3]


@contextmanager
def another_compiling(cache: Path, model: Model = MODEL) -> Iterator[threading.Event]:
    """Another thread holds the lease of *model*'s entry until the event is set, or the block
    ends.
    """
    begun, go_on = threading.Event(), threading.Event()

    def hold(_: hal.PrepareConfig) -> None:
        begun.set()
        assert go_on.wait(120)

    device = CachingDevice(on_prepare=hold)
    first = threading.Thread(target=lambda: compiled(device, cache, model).close())
    first.start()
    try:
        assert begun.wait(30)
        yield go_on
    finally:
        go_on.set()
        first.join()


class TestTogether:
    def test_threads_compile_once(self, tmp_path: Path) -> None:
        device, found = CachingDevice(), []
        barrier = threading.Barrier(6)

        def work() -> None:
            barrier.wait()
            found.append(outcome(device, tmp_path / "c")[0])

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == ["hit"] * 5 + ["miss"]

    def test_a_wait_can_be_cancelled(self, tmp_path: Path) -> None:
        cancel, seen = hal.CancelToken(), list[hal.ProgressEvent]()
        with another_compiling(tmp_path / "c"):
            threading.Timer(0.05, cancel.set).start()
            with pytest.raises(errors.Cancelled):
                compiled(CachingDevice(), tmp_path / "c", cancel=cancel, progress=seen.append)
        assert [e.stage for e in seen] == ["compile", "lease"]

    def test_a_wait_leaves_half_of_the_time_for_a_compile(self, tmp_path: Path) -> None:
        with another_compiling(tmp_path / "c") as go_on:
            watchdog = threading.Timer(60, go_on.set)
            watchdog.start()
            try:
                began = time.monotonic()
                with compiled(CachingDevice(), tmp_path / "c", timeout=4) as made:
                    found = made.receipt.steps[0].cache
                assert 1.5 < time.monotonic() - began < 3.5
                assert not go_on.is_set()
            finally:
                watchdog.cancel()
        assert not found.saved
        assert "was still compiling it after a wait of" in found.not_saved

    def test_a_wait_ends_with_the_lease(self, tmp_path: Path) -> None:
        with (
            another_compiling(tmp_path / "c"),
            penstock.knobs.override(lease_seconds=0.1),
            compiled(CachingDevice(), tmp_path / "c") as made,
        ):
            found = made.receipt.steps[0].cache
        assert not found.saved
        assert "0.1 s" in found.not_saved


def test_a_thread_that_outlives_the_main_one_waits_like_any_other(tmp_path: Path) -> None:
    program = f"""
import sys, threading
sys.path.insert(0, {str(ROOT)!r})
import penstock
from tests.support_caching import CachingDevice
from tests.unit.partitioning.models import chain

compile = penstock.compile

def work():
    threading.main_thread().join()
    with compile(
        chain(("ADD",)), devices=[CachingDevice()], cache={str(tmp_path / "c")!r}
    ) as made:
        print(made.receipt.steps[0].cache.outcome, flush=True)

threading.Thread(target=work).start()
"""
    with (
        another_compiling(tmp_path / "c", chain(("ADD",))) as go_on,
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as other,
    ):
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                other.wait(2)
        finally:
            go_on.set()
        said, _ = other.communicate(timeout=60)
    assert other.returncode == 0
    assert said.split() in ([b"miss"], [b"hit"])


class TestWhileCompiling:
    """`Policy(while_compiling="reference")`: serve from the reference device, switch when
    compiled.
    """

    policy = Policy(while_compiling="reference")

    def test_runs_at_once_and_switches(self, tmp_path: Path) -> None:
        begun, go_on = threading.Event(), threading.Event()

        def hold(_: hal.PrepareConfig) -> None:
            begun.set()
            assert go_on.wait(30)

        device = CachingDevice(on_prepare=hold)
        with compiled(device, tmp_path / "c", policy=self.policy) as made:
            assert begun.wait(30)
            assert made.receipt.steps[0].device == "reference"
            assert made.receipt.steps[0].fallback_from == "caching"
            outcome = made.receipt.steps[0].cache
            assert str(outcome) == "miss: NotYetWritten: still compiling on caching"
            before = made.run([X])
            assert before.receipt.steps[0].device == "reference"
            assert made.plan.operations[0].device == "caching"
            go_on.set()
            pending = made.executable.base.compilation.steps[0].pending
            assert pending is not None
            assert pending.wait(30)
            after = made.run([X])
            assert after.receipt.steps[0].device == "caching"
            np.testing.assert_array_equal(before[0], after[0])
        with compiled(device, tmp_path / "c", policy=self.policy) as made:
            assert made.receipt.steps[0].cache.outcome == "hit"
            assert made.receipt.compiles == 0

    def test_a_buffer_of_the_device_that_ran_meanwhile_is_copied_and_it_shows(
        self, tmp_path: Path
    ) -> None:
        go_on = threading.Event()

        def hold(_: hal.PrepareConfig) -> None:
            assert go_on.wait(30)

        device = CachingDevice(on_prepare=hold)
        with compiled(device, tmp_path / "c", policy=self.policy) as made:
            with made.allocate(inputs=[0]) as buffer:
                assert buffer.device == "reference"
                buffer.copy_from(X)
                assert not made.run([buffer]).receipt.copies
                go_on.set()
                pending = made.executable.base.compilation.steps[0].pending
                assert pending is not None
                assert pending.wait(30)
                after = made.run([buffer])
            assert after.receipt.steps[0].device == "caching"
            copy, *more = after.receipt.copies
            assert (copy.nbytes, copy.destination) == (X.nbytes, "host")
            assert copy.reason == "caching does not take it as it is"
            assert len(more) < 2

    def test_close_cancels_what_is_under_way(self, tmp_path: Path) -> None:
        seen = threading.Event()

        def wait_for_the_end(config: hal.PrepareConfig) -> None:
            assert config.cancel is not None
            seen.set()
            while True:
                config.cancel.check()

        device = CachingDevice(on_prepare=wait_for_the_end)
        made = compiled(device, tmp_path / "c", policy=self.policy)
        assert seen.wait(30)
        made.close()
        assert not [t for t in threading.enumerate() if t.name.startswith("penstock-compile")]

    def test_a_program_that_ends_waits_and_saves(self, tmp_path: Path) -> None:
        program = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
import penstock
from tests.support_caching import CachingDevice
from tests.unit.partitioning.models import chain
device = CachingDevice(on_prepare=lambda config: time.sleep(0.3))
policy = penstock.Policy(while_compiling="reference")
cache = {str(tmp_path / "c")!r}
made = penstock.compile(chain(("ADD",)), devices=[device], cache=cache, policy=policy)
"""
        subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
        assert len(CacheDirectory(tmp_path / "c").records()) == 1
        assert not list((tmp_path / "c").glob("*.tmp"))

    def test_a_program_that_ends_does_not_wait_for_others(self, tmp_path: Path) -> None:
        program = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import penstock
from tests.support_caching import CachingDevice
from tests.unit.partitioning.models import chain
policy = penstock.Policy(while_compiling="reference")
made = penstock.compile(
    chain(("ADD",)), devices=[CachingDevice()], cache={str(tmp_path / "c")!r}, policy=policy
)
while not made.executable.base.compilation.steps[0].pending._thread.is_alive():
    pass
"""
        with another_compiling(tmp_path / "c", chain(("ADD",))):
            subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

    def test_a_failure_leaves_the_reference_device(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(_: hal.PrepareConfig) -> None:
            raise errors.GeneralFailure("no room")

        with compiled(CachingDevice(on_prepare=fail), None, policy=self.policy) as made:
            pending = made.executable.base.compilation.steps[0].pending
            assert pending is not None
            assert pending.wait(30)
            assert made.run([X]).receipt.steps[0].device == "reference"
        assert "a compile in the background failed: GeneralFailure: no room" in caplog.text


class TestTheCallersProgress:
    class Mine(Exception):
        pass

    def test_error_of_a_progress_callback_propagates(self, tmp_path: Path) -> None:
        def complain(event: hal.ProgressEvent) -> None:
            if event.stage == "inside":
                raise self.Mine

        def tell(config: hal.PrepareConfig) -> None:
            assert config.progress is not None
            config.progress(hal.ProgressEvent("inside", "caching", 0, 1))

        device = CachingDevice(on_prepare=tell)
        for devices in ([device], [device, NumpyDevice("reference")]):
            with pytest.raises(self.Mine):
                compiled(devices, tmp_path / "c", progress=complain)
        assert outcome(CachingDevice(), tmp_path / "c")[0] == "miss"
