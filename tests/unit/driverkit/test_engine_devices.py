"""Devices of engines as users meet them: named, explained, and not loaded before they are
needed.
"""

from __future__ import annotations

import gc
import importlib.metadata
import os
import struct
import threading
import time
import weakref

import numpy as np
import pytest

import penstock
from penstock.driverkit.installation import processor_features
from penstock.errors import Cancelled, DeviceUnavailable, MissedDeadlineTransient, PlacementError
from penstock.hal import CancelToken, ExecutionConfig, PrepareConfig
from penstock.ir import DType, Model, ModelBuilder
from tests.support_operations import F32
from tests.support_python_goes_on import goes_on_during
from tests.unit.driverkit import engines

installed = pytest.mark.parametrize("engine", engines.INSTALLED)
every = pytest.mark.parametrize("engine", engines.EVERY)


@every
def test_missing_engine_is_the_reason_of_its_one_device(
    engine: engines.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine.without(engine.name, monkeypatch) as device:
        assert device.name == f"{engine.name}-cpu"
        assert f"{engine.name} missing" in device.version
        install = f"pip install 'penstock-nn[{engine.name}]'"
        assert device.check() == f"{engine.label} is not installed: {install}"
        with pytest.raises(DeviceUnavailable, match="not installed"):
            device.prepare_model(engines.relu(), PrepareConfig())
        with pytest.raises(DeviceUnavailable, match="not installed"):
            device.prepare_model_from_cache(PrepareConfig())
        with pytest.raises(PlacementError, match="cannot be used"):
            penstock.compile(engines.relu(), devices=[device])


@every
def test_supported_operations_are_known_without_the_engine(
    engine: engines.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine.without(engine.name, monkeypatch) as device:
        assert device.supported_operations(engines.relu())[0].supported


@installed
def test_the_version_names_engine_and_processor(engine: engines.Engine) -> None:
    version = engine.cpu().version
    assert f"{engine.name} {importlib.metadata.version(engine.name)}" in version
    assert processor_features() in version


@installed
def test_listing_and_planning_do_not_load_the_engine(engine: engines.Engine) -> None:
    program = engines.MODEL.format(name=engine.name) + (
        "penstock.devices()\n"
        "for device in create():\n"
        "    device.version, device.check(), device.supported_operations(model)\n"
        "penstock.compile(model, devices=['reference'], cache=False).close()\n"
        f"print([p for p in {engine.packages!r} if p in sys.modules])\n"
    )
    assert engines.words_of(program) == ["[]"]


REFUSED: dict[str, tuple[Model, str]] = {
    "unknown shape": (engines.relu((None, 3)), "known only when it runs"),
    "no elements": (engines.relu((0, 3)), "no elements"),
    "another type": (engines.relu((3,), DType.FLOAT16), "input 0 is float16, not "),
    "no scale": (engines.relu((3,), DType.INT8), "without a scale"),
}


@every
@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_gives_its_reason(engine: engines.Engine, name: str) -> None:
    model, reason = REFUSED[name]
    (answer,) = engine.cpu().supported_operations(model)
    assert not answer.supported
    assert reason in answer.reason


@installed
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_forked_child_is_refused_and_does_not_hang(engine: engines.Engine) -> None:
    program = engines.MODEL.format(name=engine.name) + (
        "device = create()[0]\n"
        "compiled = penstock.compile(model, devices=[device], cache=False, num_threads=2)\n"
        "compiled(np.zeros(4, np.float32))\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    ok = 'forked' in str(device.check())\n"
        "    try:\n"
        "        penstock.compile(model, devices=[device], cache=False)\n"
        "    except penstock.errors.PlacementError as error:\n"
        "        ok = ok and 'forked' in str(error)\n"
        "    os._exit(0 if ok else 1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert engines.words_of(program) == ["0"]


@installed
@pytest.mark.parametrize("writeable", [False, True])
def test_a_run_computes_over_the_callers_memory(engine: engines.Engine, writeable: bool) -> None:
    with penstock.compile(engines.relu((64,)), devices=[engine.cpu()], cache=False) as compiled:
        given = np.linspace(-1, 1, 64, dtype=np.float32)
        given.flags.writeable = writeable
        out = np.empty(64, np.float32)
        outputs = compiled.run([given], out=[out])
        assert np.array_equal(out, np.maximum(given, 0))
        assert outputs.receipt.copies == ()


@installed
def test_memory_that_is_not_aligned_is_copied(engine: engines.Engine) -> None:
    prepared = engine.cpu().prepare_model(engines.relu((5,)), PrepareConfig())
    given, out = (np.zeros(24, np.uint8)[2:22].view(np.float32) for _ in range(2))
    given[:] = [-1, 2, -3, 4, -5]
    for _ in range(2):
        prepared.execute(engines.request(given, out), ExecutionConfig())
        assert out.tolist() == [0, 2, 0, 4, 0]
        given *= -1
        prepared.execute(engines.request(given, out), ExecutionConfig())
        assert out.tolist() == [1, 0, 3, 0, 5]
        given *= -1


@installed
def test_prepared_model_keeps_no_array_of_the_caller(engine: engines.Engine) -> None:
    prepared = engine.cpu().prepare_model(engines.relu((1000,)), PrepareConfig())
    given, out = np.zeros(1000, np.float32), np.empty(1000, np.float32)
    prepared.execute(engines.request(given, out), ExecutionConfig())
    watched = [weakref.ref(given), weakref.ref(out)]
    del given, out
    gc.collect()
    assert [each() for each in watched] == [None, None]


@installed
def test_a_cancelled_or_late_run_ends_and_writes_nothing_more(engine: engines.Engine) -> None:
    prepared = engine.cpu().prepare_model(engines.products(40, 1500), PrepareConfig(num_threads=1))
    given, out = engines.ones(1500)
    before = threading.active_count()
    deadline = time.monotonic_ns() + 20_000_000
    with pytest.raises(MissedDeadlineTransient):
        prepared.execute(engines.request(given, out), ExecutionConfig(deadline_ns=deadline))
    token = CancelToken()
    timer = threading.Timer(0.02, token.set)
    timer.start()
    with pytest.raises(Cancelled):
        prepared.execute(engines.request(given, out), ExecutionConfig(cancel=token))
    timer.join()
    assert threading.active_count() == before
    out.fill(1)
    time.sleep(0.01)
    assert out.all()


@installed
def test_python_goes_on_while_the_engine_computes(engine: engines.Engine) -> None:
    prepared = engine.cpu().prepare_model(engines.products(2, 1000), PrepareConfig(num_threads=1))
    given, out = engines.ones(1000)
    assert goes_on_during(lambda: prepared.execute(engines.request(given, out), ExecutionConfig()))


@installed
def test_runs_in_many_threads_are_right(engine: engines.Engine) -> None:
    prepared = engine.cpu().prepare_model(engines.relu((1000,)), PrepareConfig(num_threads=1))
    wrong: list[int] = []

    def runs(number: int) -> None:
        given = np.full(1000, number - 4, np.float32)
        out = np.empty(1000, np.float32)
        for _ in range(200):
            prepared.execute(engines.request(given, out), ExecutionConfig())
            if not np.array_equal(out, np.maximum(given, 0)):
                wrong.append(number)

    threads = [threading.Thread(target=runs, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@every
def test_an_operation_before_the_position_of_a_maximum_is_relaxed(engine: engines.Engine) -> None:
    """Float32 rounding would move whole values there."""
    b = ModelBuilder()
    shape = (1, 4, 4, 2)
    (x,) = b.operation("RELU", [b.input(F32, shape, "x")], [(F32, shape)])
    pooled, positions = b.operation(
        "CUSTOM", [x], [(F32, (1, 2, 2, 2)), (F32, (1, 2, 2, 2))],
        {"custom_code": "MaxPoolingWithArgmax2D",
            "custom_options": struct.pack("<5i", 1, 2, 2, 2, 2)},
    )  # fmt: skip
    (y,) = b.operation("RELU", [pooled], [(F32, (1, 2, 2, 2))])
    answers = engine.cpu().supported_operations(b.build([y, positions]))
    assert [a.accuracy for a in answers if a.supported] == ["relaxed", "faithful"]
