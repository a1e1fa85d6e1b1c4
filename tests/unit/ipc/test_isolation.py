"""Drivers in processes of their own that die, hang, talk and lie, as their callers see it."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import CompiledModel, Policy, errors
from penstock.hal import CancelToken, ExecutionConfig, HostMemory, RemoteResult, Request
from penstock.ipc import supervision
from penstock.ipc.client import RemoteDevice
from penstock.ipc.crash_records import last_crash
from penstock.ipc.resilient import IsolatedDevice
from penstock.ipc.resilient_model import IsolatedPreparedModel
from penstock.ir import DType, Lifetime, ModelBuilder, NDArray, Operand
from penstock.memory import MemoryPool
from penstock.runtime import discovery, isolation
from penstock.runtime.discovery import Manager
from penstock.runtime.entries import Entry
from penstock.testing.resources import Resources
from tests import support_isolated as support
from tests.support_waiting import eventually

MODEL = support.add_one()
X = np.full(support.SHAPE, 3, np.float32)
ALONE = Policy(allow_fallback=False)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory of one's own, so a host too, which is gone after the test."""
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PENSTOCK_KEY_STORE", "file")
    entries = (
        Entry("misbehaving", support.ENTRY, "penstock-nn"),
        Entry("reference", "penstock.drivers.reference:create", "penstock-nn"),
    )
    manager = Manager(lambda: entries)
    monkeypatch.setattr("penstock.runtime.session.manager", manager)
    # The hosts that other tests of this process have stay as they are.
    monkeypatch.setattr(isolation, "_supervisors", {})
    yield tmp_path / "state"
    isolation.close_hosts()


@pytest.mark.parametrize("burst", [False, True])
def test_a_view_that_is_not_aligned_is_copied(burst: bool) -> None:
    nbytes = X.nbytes + 16
    with compiled(ALONE) as model, MemoryPool.anonymous(2 * nbytes) as pool, model.burst() as more:
        given = pool.view(np.float32, support.SHAPE, 3)
        out = pool.view(np.float32, support.SHAPE, nbytes + 1)
        given[...] = X
        outputs = more.run(given, out=[out]) if burst else model.run([given], out=[out])
        assert np.array_equal(out, X + 1)
        assert outputs[0] is out
        assert burst or len(outputs.receipt.copies) == 2


@pytest.mark.parametrize("burst", [False, True])
@pytest.mark.parametrize(
    ("code", "said"),
    [(support.LEAVE, "SystemExit: no licence"), (support.INTERRUPT, "KeyboardInterrupt")],
)
def test_a_driver_that_would_end_its_program_is_answered_for(
    burst: bool, code: int, said: str
) -> None:
    with compiled(ALONE) as model, model.burst() as more:

        def run(x: NDArray) -> penstock.Outputs:
            return more.run(x, timeout=20) if burst else model.run([x], timeout=20)

        check(run(X))
        with pytest.raises(errors.GeneralFailure, match=said):
            run(support.order(code))
        check(run(X))
        (supervisor,) = isolation.supervisors()
        assert supervisor.starts == 1


def test_a_supervisor_says_whose_it_is() -> None:
    with compiled():
        names = [repr(s) for s in isolation.supervisors()]
    assert len(names) == 1
    assert names[0].startswith("Supervisor(misbehaving = ")
    assert "running, 1 start" in names[0]


def compiled(policy: Policy | None = None) -> CompiledModel:
    return penstock.compile(
        MODEL, devices=["misbehaving"], isolate=True, cache=False, policy=policy or Policy()
    )


def test_a_device_that_is_closed_takes_nothing_from_others_of_its_process() -> None:
    with compiled() as model, model.burst() as burst:
        for _ in range(3):
            model.run([X])
            burst.run(X)
        (supervisor,) = isolation.supervisors()
        IsolatedDevice(supervisor, 0).close()
        for outputs in (model.run([X]), burst.run(X)):
            assert np.array_equal(outputs[0], X + 1)
            assert outputs.receipt.notes == ()
        assert (supervisor.starts, supervisor.ends) == (1, 0)


def host() -> int:
    """The process of the one driver that is isolated."""
    (supervisor,) = isolation.supervisors()
    link = supervisor.connection()
    return link.pid


def check(outputs: penstock.Outputs) -> None:
    np.testing.assert_array_equal(outputs[0], X + 1)


def test_a_process_killed_between_calls_is_not_noticed_but_in_the_receipt() -> None:
    with compiled(ALONE) as model:
        check(model(X))
        os.kill(host(), signal.SIGKILL)
        outputs = model(X)
        check(outputs)
        (note,) = outputs.receipt.notes
        assert "SIGKILL" in note
        assert "started again" in note
        assert model(X).receipt.notes == ()
        os.kill(host(), signal.SIGKILL)
        with compiled(ALONE) as another:
            (note,) = another.receipt.notes
            assert "SIGKILL" in note
            assert note.endswith("it was started again for the compile")
        with compiled(ALONE) as another:
            assert another.receipt.notes == ()


def test_a_process_that_dies_of_a_run_is_forgiven_although_one_died_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare = RemoteDevice.prepare_model
    killed: list[int] = []

    def dying(*arguments: Any) -> Any:
        if not killed:
            killed.append(host())
            os.kill(killed[0], signal.SIGKILL)
        return prepare(*arguments)

    with compiled(ALONE) as model:
        check(model(X))
        (supervisor,) = isolation.supervisors()
        first = supervisor.connection()
        os.kill(first.pid, signal.SIGKILL)
        first.settle()
        # Whoever asks the device next has the process started again; the model is not prepared
        # there yet.
        assert host() != first.pid
        monkeypatch.setattr(RemoteDevice, "prepare_model", dying)
        check(model(X))
        assert killed
        assert supervisor.ends == 2


@pytest.mark.parametrize("code", [support.KILL, support.ABORT, support.EXIT, support.SEGFAULT])
def test_a_driver_that_dies_in_each_run_falls_back(code: int) -> None:
    with compiled() as model:
        outputs = model(support.order(code))
        np.testing.assert_array_equal(outputs[0], support.order(code) + 1)
        (step,) = outputs.receipt.steps
        assert step.device == "reference"
        assert step.fallback_from == "misbehaving"
        assert step.error is not None
        assert step.error.startswith("DeadObject")
        check(model(X))


def test_a_driver_that_dies_without_a_fall_back_is_a_dead_object() -> None:
    with compiled(ALONE) as model:
        with pytest.raises(errors.DeadObject, match="was ended by SIGKILL"):
            model(support.order(support.KILL))
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(errors.DeadObject):
                check(model(X))
                return
            time.sleep(0.05)
        pytest.fail("the driver did not come back")


def test_run_waits_for_a_preparation_at_most_until_its_deadline() -> None:
    with compiled(ALONE) as model:
        check(model(X))
        (step,) = model.executable.base.compilation.steps  # what a run has
        prepared = step.prepared
        while not isinstance(prepared, IsolatedPreparedModel):
            prepared = prepared.prepared  # type: ignore[attr-defined]  # of what wraps it
        began = time.monotonic()
        with prepared._lock, pytest.raises(errors.DeadObject, match="still being prepared"):
            prepared.current(time.monotonic_ns() + 50_000_000)
        assert time.monotonic() - began < 20
        check(model(X))


def test_a_driver_that_dies_once_answers_in_the_same_call() -> None:
    with compiled(ALONE) as model:
        outputs = model(support.order(support.ONCE))
        np.testing.assert_array_equal(outputs[0], support.order(support.ONCE) + 1)
        assert "run repeated" in outputs.receipt.notes[0]


def test_death_found_by_several_runs_counts_once() -> None:
    with compiled(ALONE) as model, ThreadPoolExecutor(8) as threads:
        check(model(X))
        pid = host()
        support.stop(pid)
        runs = [threads.submit(model, X) for _ in range(8)]
        (supervisor,) = isolation.supervisors()
        assert eventually(lambda: len(supervisor.underway) == 8)
        os.kill(pid, signal.SIGKILL)
        for run in runs:
            outputs = run.result(30)
            check(outputs)
            assert "run repeated" in " ".join(outputs.receipt.notes)
        assert supervisor.starts == 2


def test_run_repeated_on_a_restarted_process_is_noted() -> None:
    with compiled(ALONE) as model:
        check(model(X))
        (step,) = model.executable.base.compilation.steps
        prepared = step.prepared
        while not isinstance(prepared, IsolatedPreparedModel):
            prepared = prepared.prepared  # type: ignore[attr-defined]  # of what wraps it
        out = np.zeros_like(X)
        request = Request((HostMemory(X),), (HostMemory(out),))
        killed: list[int] = []

        def call(remote: Any) -> Any:
            if not killed:
                killed.append(host())
                os.kill(killed[0], signal.SIGKILL)
                check(model(X))
                raise errors.DeadObject("its process died")
            return remote.execute(request, ExecutionConfig())

        result = prepared.run(call, request, ExecutionConfig())
        assert isinstance(result, RemoteResult)
        assert "run repeated" in " ".join(result.incidents)


def test_late_notice_of_a_death_leaves_the_restarted_process() -> None:
    with compiled(ALONE) as model:
        check(model(X))
        (supervisor,) = isolation.supervisors()
        link = supervisor.connection()
        supervisor.await_end(link)
        assert supervisor.running is link
        check(model(X))


def test_a_stopped_process_is_found_while_the_settings_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_DRIVER_TIMEOUT_MS", "1500")
    with compiled() as model:
        check(model(X))
        pid = host()
        monkeypatch.setenv("PENSTOCK_DRIVER_TIMEOUT_MS", "soon")
        support.stop(pid)
        (supervisor,) = isolation.supervisors()
        patience = time.monotonic() + 60
        while supervisor.running is not None:
            assert time.monotonic() < patience
            time.sleep(0.05)
        monkeypatch.setenv("PENSTOCK_DRIVER_TIMEOUT_MS", "1500")
        outputs = model(X)
        check(outputs)
        assert "no sign of life" in " ".join(outputs.receipt.notes), outputs.receipt.show()


@pytest.mark.slow
def test_a_stopped_process_is_hung_and_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DRIVER_TIMEOUT_MS", "3000")
    with compiled() as model:
        check(model(X))
        support.stop(host())
        began = time.monotonic()
        outputs = model(X)
        check(outputs)
        assert time.monotonic() - began < 40
        assert "no sign of life" in " ".join(outputs.receipt.notes), outputs.receipt.show()


def test_a_stopped_process_does_not_hold_a_call_beyond_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_DRIVER_TIMEOUT_MS", "60000")
    with compiled() as model:
        check(model(X))
        pid = host()
        support.stop(pid)
        began = time.monotonic()
        with pytest.raises(errors.MissedDeadline):
            model.run([X], timeout=0.3)
        assert time.monotonic() - began < 20
        os.kill(pid, signal.SIGKILL)
        check(model(X))


def test_a_thread_that_hangs_is_left_at_the_deadline_and_at_a_cancellation() -> None:
    with compiled() as model:
        with pytest.raises(errors.MissedDeadline):
            model.run([support.order(support.HANG)], timeout=0.3)
        token = CancelToken()
        threading.Timer(0.2, token.set).start()
        began = time.monotonic()
        with pytest.raises(errors.Cancelled):
            model.run([support.order(support.HANG)], cancel=token)
        assert time.monotonic() - began < 30
        check(model(X))


def test_note_of_a_death_says_how_the_process_ended(caplog: pytest.LogCaptureFixture) -> None:
    """And no number of an error of the socket."""
    with compiled(ALONE) as model:
        check(model(X))
        pid = host()
        support.stop(pid)
        with ThreadPoolExecutor(1) as threads:
            run = threads.submit(model.executable.base.compilation.steps[0].device.check)
            time.sleep(0.2)
            (supervisor,) = isolation.supervisors()
            session = supervisor.connection().session
            os.kill(pid, signal.SIGKILL)
            run.result(30)
        assert (
            session.end_reason == f"the process of driver misbehaving ({pid}) was ended by SIGKILL"
        )
        with pytest.raises(errors.DeadObject) as caught:
            model(support.order(support.KILL))
        assert "SIGKILL" in str(caught.value)
    assert "Errno" not in caplog.text + str(caught.value)


def test_note_of_a_death_waits_for_a_broker_that_is_late() -> None:
    with compiled() as model:
        check(model(X))
        (supervisor,) = isolation.supervisors()
        link = supervisor.connection()
        broker = link._started.broker
        os.kill(broker, signal.SIGSTOP)
        os.kill(link.pid, signal.SIGKILL)
        late = threading.Timer(1.5, os.kill, (broker, signal.SIGCONT))
        late.start()
        (note,) = model(X).receipt.notes
        late.join()
        assert "was ended by SIGKILL" in note


def test_garbage_in_the_stream_ends_the_process_and_not_the_call() -> None:
    with compiled() as model:
        outputs = model(support.order(support.LIE))
        np.testing.assert_array_equal(outputs[0], support.order(support.LIE) + 1)
        check(model(X))


def test_output_of_a_driver_is_logged(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO, "penstock.ipc"), compiled() as model:
        model(support.order(support.SPEAK))
        isolation.close_hosts()
    assert "said on stdout" in caplog.text
    assert "said on stderr" in caplog.text
    assert capfd.readouterr() == ("", "")


def test_a_process_that_is_killed_between_calls_leaves_no_record_of_a_crash() -> None:
    with compiled() as model:
        model(X)
        os.kill(host(), signal.SIGKILL)
        (supervisor,) = isolation._supervisors.values()
        assert eventually(lambda: supervisor.ends == 1)
        assert "was ended by SIGKILL" in model.run([X]).receipt.show()
    assert last_crash() is None


def test_a_crash_is_kept_with_its_circumstances(state: Path) -> None:
    with compiled() as model:
        model(support.order(support.SEGFAULT))
    crash = last_crash()
    assert crash is not None
    assert crash.driver == "misbehaving"
    assert crash.how == "was ended by SIGSEGV"
    assert "last words of a driver" in crash.output
    (call,) = crash.underway
    assert (call.call, call.device) == ("execute", "misbehaving")
    assert call.model == (MODEL.digest.structure + MODEL.digest.constants).hex()
    assert call.operations == ("0 (ADD, 'ADD_0')",)
    assert list((state / "crashes").iterdir())


def test_shapes_of_a_run_while_the_driver_is_not_there_fall_back_until_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervision, "FIRST_PAUSE", 1.5)
    monkeypatch.setattr(supervision, "MOST_WAITED", 0.0)
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (None, 4), "x")
    unknown = b.build(b.operation("RELU", [x], [(DType.FLOAT32, (None, 4))]))
    with penstock.compile(unknown, devices=["misbehaving"], isolate=True, cache=False) as model:
        (supervisor,) = isolation.supervisors()
        for deaths in (1, 2):
            link = supervisor.connection()
            os.kill(link.pid, signal.SIGKILL)
            link.settle()
            assert supervisor._deaths == deaths
        for _ in range(2):
            outputs = model(X)
            np.testing.assert_array_equal(outputs[0], X)
            (step,) = outputs.receipt.steps
            assert (step.device, step.fallback_from) == ("reference", "misbehaving")
            assert step.error is not None
            assert step.error.startswith("DeadObject: the process of driver misbehaving was ended")
        patience = time.monotonic() + 20
        while (step := model(X).receipt.steps[0]).device != "misbehaving":
            assert time.monotonic() < patience
            time.sleep(0.1)
        assert (step.fallback_from, step.error) == (None, None)


def test_shapes_of_a_run_while_the_driver_is_not_there_need_a_fall_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervision, "FIRST_PAUSE", 60.0)
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (None, 4), "x")
    unknown = b.build(b.operation("RELU", [x], [(DType.FLOAT32, (None, 4))]))
    with penstock.compile(
        unknown, devices=["misbehaving"], isolate=True, cache=False, policy=ALONE
    ) as model:
        (supervisor,) = isolation.supervisors()
        for _ in range(2):
            link = supervisor.connection()
            os.kill(link.pid, signal.SIGKILL)
            link.settle()
        with pytest.raises(errors.PlacementError, match="cannot be asked: DeadObject"):
            model(X)


def test_a_driver_that_keeps_dying_is_quarantined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "FIRST_PAUSE", 0.0)
    with compiled(ALONE) as first, compiled(ALONE) as second, compiled(ALONE) as third:
        (supervisor,) = isolation.supervisors()
        for model in (first, first, second, second, second):
            with pytest.raises(errors.DeadObject):
                model(support.order(support.KILL))
        assert "quarantined" in supervisor.quarantined
        with pytest.raises(errors.DeadObject, match=r"quarantined in this program for \d+ s more"):
            third(X)
        with pytest.raises(
            errors.PlacementError, match=r"quarantined in this program for \d+ s more"
        ):
            compiled(ALONE)
    crash = last_crash()
    assert crash is not None
    assert crash.quarantined


def test_a_device_that_comes_back_as_another_is_of_no_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = support.telling(tmp_path, monkeypatch)
    with compiled(ALONE) as model:
        check(model(X))
        (told / "version").write_text("another")
        os.kill(host(), signal.SIGKILL)
        said = "not what it was: .* its version is 'another', and was '1 .*; a program"
        with pytest.raises(errors.GeneralFailure, match=said):
            model(X)


@pytest.mark.slow
def test_twenty_rounds_of_killing_and_calling() -> None:
    with compiled() as model:
        check(model(X))
        with Resources.unchanged("twenty rounds"):
            for _ in range(20):
                os.kill(host(), signal.SIGKILL)
                check(model(X))


@pytest.mark.slow
def test_killing_in_the_middle_of_calls() -> None:
    stop = threading.Event()

    def kill() -> None:
        while not stop.wait(0.15):
            for supervisor in isolation.supervisors():
                if (link := supervisor.running) is not None:
                    os.kill(link.pid, signal.SIGKILL)

    with compiled() as model:
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            end = time.monotonic() + 3
            while time.monotonic() < end:
                check(model.run([X], timeout=20))
        finally:
            stop.set()
            killer.join()
        check(model(X))


def test_arrays_in_pools_are_not_copied() -> None:
    with compiled(ALONE) as model, MemoryPool.anonymous(2 * X.nbytes) as pool:
        x = pool.view(np.float32, support.SHAPE)
        out = pool.view(np.float32, support.SHAPE, X.nbytes)
        x[...] = X
        outputs = model.run([x], out=[out])
        np.testing.assert_array_equal(out, X + 1)
        assert outputs.receipt.copies == ()
        assert len(model(X).receipt.copies) == 2
        del x, out, outputs


def test_dlpack_view_of_a_pool_is_not_copied() -> None:
    """Each array has an owner of its own, which may lie where the one of another pool lay."""
    with compiled(ALONE) as model:
        for turn in range(20):
            with MemoryPool.anonymous(2 * X.nbytes) as pool:
                both = np.from_dlpack(pool).view(np.float32)
                x, out = both[:16].reshape(support.SHAPE), both[16:].reshape(support.SHAPE)
                x[...] = turn
                outputs = model.run([np.from_dlpack(x)], out=[np.from_dlpack(out)])
                assert outputs.receipt.copies == ()
                assert (out == turn + 1).all()
                del both, x, out, outputs


@pytest.mark.parametrize("lifetime", [Lifetime.CONSTANT_POOL, Lifetime.CONSTANT_COPY])
def test_constants_are_copied_once_for_a_process_and_it_shows(lifetime: Lifetime) -> None:
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (8, 8), "x")
    ones = np.ones((8, 8), np.float32)
    if lifetime is Lifetime.CONSTANT_POOL:
        k = b.constant(ones, "k")
    else:
        k = b.operand(Operand(DType.FLOAT32, (8, 8), lifetime, value=ones.tobytes()))
    model = b.build(b.operation("ADD", [x, k], [(DType.FLOAT32, (8, 8))]))
    for nbytes in (256, 0):
        with penstock.compile(
            model, devices=["misbehaving"], isolate=True, cache=False, policy=ALONE
        ) as made:
            assert sum(c.nbytes for c in made.receipt.copies) == nbytes
            assert all("constants" in c.reason for c in made.receipt.copies)


def test_values_between_isolated_devices_are_not_copied() -> None:
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, support.SHAPE, "x")
    (y,) = b.operation("NEG", [x], [Operand(DType.FLOAT32, support.SHAPE, name="y")])
    (z,) = b.operation("EXP", [y], [Operand(DType.FLOAT32, support.SHAPE, name="z")])
    policy = Policy(allow_fallback=False, require={"NEG": ["misbehaving"], "EXP": ["reference"]})
    with penstock.compile(
        b.build([z]), devices=["misbehaving", "reference"], isolate=True, cache=False, policy=policy
    ) as model:
        outputs = model(np.zeros(support.SHAPE, np.float32))
        assert [s.device for s in outputs.receipt.steps] == ["misbehaving", "reference"]
        assert (outputs[0] == 1).all()
        assert len(outputs.receipt.copies) == 2


def test_closed_hosts_leave_nothing_open() -> None:
    with compiled() as model:
        check(model(X))
        pid = host()
    isolation.close_hosts()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_two_models_share_one_process() -> None:
    with compiled() as first, compiled() as second:
        check(first(X))
        check(second(X))
        (supervisor,) = isolation.supervisors()
        assert supervisor.starts == 1


def test_a_child_process_cannot_use_its_parents_connection() -> None:
    with compiled() as model:
        check(model(X))
        device = model.executable.base.compilation.steps[0].device
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                model(X)
            except errors.StateError:
                try:
                    device.check()
                except errors.StateError:
                    code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        check(model(X))


def test_an_object_cannot_be_isolated() -> None:
    with pytest.raises(errors.PlacementError, match="cannot be isolated"):
        penstock.compile(MODEL, devices=[support.create()], isolate=True)


def test_a_system_that_cannot_isolate_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.ipc.starting.unavailable", lambda: "it lacks everything")
    with pytest.raises(errors.NotAvailable, match="it lacks everything"):
        compiled()


def test_third_party_drivers_are_isolated_by_themselves() -> None:
    own, other = Entry("a", "m:f", "penstock-nn"), Entry("b", "m:f", "somebody-elses")
    assert [isolation.is_isolated(e, None) for e in (own, other)] == [False, True]
    assert [isolation.is_isolated(e, False) for e in (own, other)] == [False, False]
    assert [isolation.is_isolated(e, True) for e in (own, other)] == [True, True]


def test_a_service_alone_isolates_penstocks_own_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Entry("a", "m:f", "penstock-nn")
    assert not discovery._is_isolated(own, None)
    monkeypatch.setenv("PENSTOCK_SERVICES", "a=/run/a.sock")
    assert discovery._is_isolated(own, None)


def test_the_setting_decides_for_each_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_ISOLATE", "a, b=no")
    own, other = Entry("a", "m:f", "penstock-nn"), Entry("b", "m:f", "somebody-elses")
    assert [isolation.is_isolated(e, None) for e in (own, other)] == [True, False]
    monkeypatch.setenv("PENSTOCK_ISOLATE", "a=perhaps")
    with pytest.raises(penstock.errors.InputError, match="a=perhaps"):
        isolation.is_isolated(own, None)
