"""Each rule of NNAPI's compilation calls and the result code of breaking it (NNAPI sections 1.4 and
4.6).
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import errors, nnapi
from penstock.drivers.reference import ReferenceDevice
from penstock.errors import driver_error_classes
from penstock.hal import Device as HalDevice, PrepareConfig
from penstock.nnapi.codes import STATUS_CODES
from penstock.testing.doubles import FaultyDevice, RecordingDevice
from tests.checked import does_not_raise
from tests.support_devices import NumpyDevice
from tests.unit.nnapi.building import (
    BAD_DATA,
    BAD_STATE,
    UNEXPECTED_NULL,
    answers,
    finished,
    invalid,
    unfinished,
    weighted,
)

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

TOKEN = bytes(range(32))
X = np.ones((2, 3), np.float32)


def recording(name: str = "recording") -> RecordingDevice:
    return RecordingDevice(ReferenceDevice(), name)


def prepared(device: RecordingDevice) -> PrepareConfig:
    """The configuration that *device* was asked to prepare with, once."""
    (call,) = [c for c in device.calls if c.method == "prepare_model"]
    config: PrepareConfig = call.arguments[1]
    return config


class TestCreate:
    @pytest.mark.parametrize("make", [unfinished, invalid])
    def test_a_model_that_is_not_finished(self, make: Callable[[], nnapi.Model]) -> None:
        with answers(BAD_STATE):
            nnapi.Compilation(make())
        with answers(BAD_STATE):
            nnapi.Compilation.create_for_devices(make(), ["reference"])

    def test_compilation_rejects_a_missing_model(self) -> None:
        with answers(UNEXPECTED_NULL):
            nnapi.Compilation(None)  # type: ignore[arg-type]
        with answers(BAD_DATA):
            nnapi.Compilation("net.tflite")  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("devices", "code"),
        [
            (None, UNEXPECTED_NULL),
            ([None], UNEXPECTED_NULL),
            ([], BAD_DATA),
            (["nobody"], BAD_DATA),
            (["reference", "reference"], BAD_DATA),
            ("reference", BAD_DATA),
            ([3], BAD_DATA),
            (3, BAD_DATA),
        ],
    )
    def test_create_for_devices_rejects_wrong_devices(
        self, devices: Any, code: nnapi.ResultCode
    ) -> None:
        with answers(code):
            nnapi.Compilation.create_for_devices(finished(), devices)

    def test_devices_by_handle_name_or_object(self) -> None:
        for device in (nnapi.get_device_by_name("reference"), "reference", ReferenceDevice()):
            with nnapi.Compilation.create_for_devices(finished(), [device]) as compilation:
                compilation.finish()
                assert [s.device for s in compilation.receipt.steps] == ["reference"]

    def test_compilation_outlives_its_model(self) -> None:
        model = finished()
        with nnapi.Compilation(model) as compilation:
            model.close()
            compilation.finish()
            assert compilation.compiled.run([X, X])[0].tolist() == (X + X).tolist()


SETTERS: dict[str, Callable[[nnapi.Compilation], object]] = {
    "set_preference": lambda c: c.set_preference(nnapi.Preference.LOW_POWER),
    "set_priority": lambda c: c.set_priority(nnapi.Priority.LOW),
    "set_timeout": lambda c: c.set_timeout(0),
    "set_caching": lambda c: c.set_caching("/tmp", TOKEN),
    "set_caching_from_fds": lambda c: c.set_caching_from_fds([], [], TOKEN),
    "finish": nnapi.Compilation.finish,
}


@pytest.mark.parametrize("call", SETTERS.values(), ids=SETTERS)
def test_a_compilation_cannot_be_changed_after_finish(
    call: Callable[[nnapi.Compilation], object],
) -> None:
    with nnapi.Compilation.create_for_devices(finished(), ["reference"]) as compilation:
        compilation.finish()
        with answers(BAD_STATE):
            call(compilation)


@pytest.mark.parametrize("call", SETTERS.values(), ids=SETTERS)
def test_compilation_rejects_changes_after_failed_finish(
    call: Callable[[nnapi.Compilation], object],
) -> None:
    compilation = nnapi.Compilation.create_for_devices(finished(), [NumpyDevice("none", ())])
    with answers(BAD_DATA):
        compilation.finish()
    with answers(BAD_STATE):
        call(compilation)


GETTERS: dict[str, Callable[[nnapi.Compilation], object]] = {
    "compiled": lambda c: c.compiled,
    "receipt": lambda c: c.receipt,
    "alignment for input": lambda c: c.get_preferred_memory_alignment_for_input(0),
    "padding for input": lambda c: c.get_preferred_memory_padding_for_input(0),
    "alignment for output": lambda c: c.get_preferred_memory_alignment_for_output(0),
    "padding for output": lambda c: c.get_preferred_memory_padding_for_output(0),
}


@pytest.mark.parametrize("call", GETTERS.values(), ids=GETTERS)
def test_results_are_there_after_a_finish_that_succeeded(
    call: Callable[[nnapi.Compilation], object],
) -> None:
    compilation = nnapi.Compilation(finished())
    with answers(BAD_STATE):
        call(compilation)
    compilation.finish()
    call(compilation)
    compilation.close()
    with answers(BAD_STATE):
        call(compilation)
    failed = nnapi.Compilation.create_for_devices(finished(), [NumpyDevice("none", ())])
    with answers(BAD_DATA):
        failed.finish()
    with answers(BAD_STATE):
        call(failed)


@pytest.mark.parametrize("value", [3, -1, "fast", 1.5, 2**40, True])
def test_preferences_are_0_to_2(value: Any) -> None:
    with answers(BAD_DATA):
        nnapi.Compilation(finished()).set_preference(value)


@pytest.mark.parametrize("value", [0, 1, 2, 91, 120, -1, "high"])
def test_priorities_are_90_100_and_110(value: Any) -> None:
    with answers(BAD_DATA):
        nnapi.Compilation(finished()).set_priority(value)


def test_null_for_a_preference_a_priority_or_a_timeout() -> None:
    compilation = nnapi.Compilation.create_for_devices(finished(), ["reference"])
    for call in (compilation.set_preference, compilation.set_priority, compilation.set_timeout):
        with answers(UNEXPECTED_NULL):
            call(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("preference", "priority", "expected"),
    [
        (None, None, ("fast_single_answer", "medium")),
        (nnapi.Preference.LOW_POWER, nnapi.Priority.LOW, ("low_power", "low")),
        (1, 100, ("fast_single_answer", "medium")),
        (np.int32(2), 110, ("sustained_speed", "high")),
    ],
)
def test_preference_and_priority_reach_the_driver(
    preference: Any, priority: Any, expected: tuple[str, str]
) -> None:
    device = recording()
    with nnapi.Compilation.create_for_devices(finished(), [device]) as compilation:
        if preference is not None:
            compilation.set_preference(preference)
            compilation.set_priority(priority)
        compilation.finish()
    config = prepared(device)
    assert (config.preference, config.priority) == expected
    assert config.deadline_ns is None
    assert config.accuracy == "faithful"


def test_relaxation_reaches_the_driver() -> None:
    device = recording()
    with nnapi.Compilation.create_for_devices(finished(relaxed=True), [device]) as compilation:
        compilation.finish()
    assert prepared(device).accuracy == "relaxed"


class TestTimeout:
    def test_timeout_needs_exactly_one_named_device(self) -> None:
        with answers(BAD_DATA):
            nnapi.Compilation(finished()).set_timeout(1)
        two: list[HalDevice] = [recording("one"), recording("two")]
        with answers(BAD_DATA):
            nnapi.Compilation.create_for_devices(finished(), two).set_timeout(1)

    @pytest.mark.parametrize("value", [-1, 2**64, 0.5, "1"])
    def test_timeout_rejects_values_out_of_range(self, value: Any) -> None:
        with answers(BAD_DATA):
            nnapi.Compilation.create_for_devices(finished(), ["reference"]).set_timeout(value)

    def test_timeout_is_the_drivers_deadline(self) -> None:
        device = recording()
        began = time.monotonic_ns()
        with nnapi.Compilation.create_for_devices(finished(), [device]) as compilation:
            compilation.set_timeout(10**12)
            compilation.finish()
        deadline = prepared(device).deadline_ns
        assert deadline is not None
        assert began + 10**12 <= deadline <= time.monotonic_ns() + 10**12

    def test_timeout_of_0_is_no_limit(self) -> None:
        device = recording()
        with nnapi.Compilation.create_for_devices(finished(), [device]) as compilation:
            compilation.set_timeout(1)
            compilation.set_timeout(0)
            compilation.finish()
        assert prepared(device).deadline_ns is None

    def test_passed_timeout_misses_the_deadline(self) -> None:
        compilation = nnapi.Compilation.create_for_devices(finished(), [recording()])
        compilation.set_timeout(1)
        with answers(nnapi.ResultCode.MISSED_DEADLINE_PERSISTENT):
            compilation.finish()

    @pytest.mark.parametrize("level", [1, 2, 3])
    def test_devices_below_level_4_ignore_timeouts(self, level: int) -> None:
        device = NumpyDevice("old", {"ADD"}, level=level)
        with nnapi.Compilation.create_for_devices(finished(), [device]) as compilation:
            compilation.set_timeout(1)
            with does_not_raise():
                compilation.finish()


class TestAllDevices:
    """`Compilation(model)`: every device is a candidate, and the reference device repeats."""

    def quick(self, **capabilities: Any) -> NumpyDevice:
        return NumpyDevice("gpu", {"ADD"}, {"float32": (0.5, 2.0)}, **capabilities)

    def test_operations_go_to_the_best_device(self, only: Callable[..., None]) -> None:
        only(self.quick(), ReferenceDevice())
        for preference, device in ((nnapi.Preference.FAST_SINGLE_ANSWER, "gpu"), (0, "reference")):
            with nnapi.Compilation(finished()) as compilation:
                compilation.set_preference(preference)
                compilation.finish()
                assert [s.device for s in compilation.receipt.steps] == [device]

    def test_a_device_that_fails_is_replaced(self, only: Callable[..., None]) -> None:
        only(FaultyDevice(self.quick(), raise_on={"prepare_model": 1}), ReferenceDevice())
        with nnapi.Compilation(finished()) as compilation:
            compilation.finish()
            (step,) = compilation.receipt.steps
            assert (step.device, step.fallback_from) == ("reference", "gpu")

    def test_device_that_fails_in_a_run_is_replaced(self, only: Callable[..., None]) -> None:
        only(FaultyDevice(self.quick(), raise_on={"execute": 1}), ReferenceDevice())
        with nnapi.Compilation(finished()) as compilation:
            compilation.finish()
            outputs = compilation.compiled.run([X, X])
            assert outputs[0].tolist() == (X + X).tolist()
            assert [s.fallback_from for s in outputs.receipt.steps] == ["gpu"]

    def test_memory_preferences_are_the_greatest_of_all_devices(
        self, only: Callable[..., None]
    ) -> None:
        only(self.quick(alignment=4096, padding=512), ReferenceDevice())
        with nnapi.Compilation(finished()) as compilation:
            compilation.finish()
            assert compilation.get_preferred_memory_alignment_for_input(0) == 4096
            assert compilation.get_preferred_memory_padding_for_output(0) == 512

    def test_compilation_without_any_device_fails(self, only: Callable[..., None]) -> None:
        only()
        compilation = nnapi.Compilation(finished())
        with answers(BAD_DATA, "no usable device"):
            compilation.finish()

    def test_devices_that_are_only_used_when_named_are_not_listed(
        self, only: Callable[..., None]
    ) -> None:
        only(self.quick(only_when_named=True), ReferenceDevice())
        assert [nnapi.get_device(i).name for i in range(nnapi.get_device_count())] == ["reference"]
        assert nnapi.get_device_by_name("gpu").type.name == "ACCELERATOR"
        only(self.quick(only_when_named=True))
        assert nnapi.get_device_count() == 0

    @pytest.mark.parametrize("level", range(1, 9))
    def test_devices_report_their_feature_level(
        self, only: Callable[..., None], level: int
    ) -> None:
        only(self.quick(level=level))
        assert nnapi.get_device(0).feature_level.name == f"LEVEL_{level}"


class TestFailures:
    @pytest.mark.parametrize(
        "kind", driver_error_classes().values(), ids=lambda kind: kind.__name__
    )
    def test_a_drivers_error_has_its_code(self, kind: type[errors.DriverError]) -> None:
        device = FaultyDevice(ReferenceDevice(), raise_on={"prepare_model": 1}, error=kind)
        compilation = nnapi.Compilation.create_for_devices(finished(), [device])
        with answers(STATUS_CODES[kind.status]):
            compilation.finish()

    def test_an_operation_that_no_named_device_has(self) -> None:
        compilation = nnapi.Compilation.create_for_devices(
            finished(), [NumpyDevice("gpu", {"SUB"})]
        )
        with answers(BAD_DATA, "gpu has no ADD"):
            compilation.finish()

    def test_named_devices_have_no_fall_back(self) -> None:
        quick = NumpyDevice("gpu", {"ADD"}, {"float32": (0.5, 0.5)})
        failing = FaultyDevice(quick, raise_on={"prepare_model": 1})
        compilation = nnapi.Compilation.create_for_devices(finished(), [failing, "reference"])
        with answers(nnapi.ResultCode.OP_FAILED):
            compilation.finish()

    def test_named_device_has_no_fallback_in_a_run(self) -> None:
        failing = FaultyDevice(NumpyDevice("gpu", {"ADD"}), raise_on={"execute": 1})
        with nnapi.Compilation.create_for_devices(finished(), [failing]) as compilation:
            compilation.finish()
            with pytest.raises(errors.GeneralFailure):
                compilation.compiled.run([X, X])


class TestMemoryPreferences:
    @pytest.fixture
    def compilation(self) -> Any:
        first = NumpyDevice("first", {"ADD"}, alignment=256, padding=32)
        second = NumpyDevice("second", {"NEG"}, alignment=8, padding=1)
        model = nnapi.Model()
        x, y, z, w = (model.add_operand(3, (4,)) for _ in range(4))
        zero = model.add_operand(1)
        model.set_operand_value(zero, 0)
        model.add_operation("ADD", [x, y, zero], [z])
        model.add_operation("NEG", [z], [w])
        model.identify_inputs_and_outputs([x, y], [w, z])
        model.finish()
        with nnapi.Compilation.create_for_devices(model, [first, second]) as made:
            made.finish()
            yield made

    def test_are_those_of_all_that_read_or_write(self, compilation: nnapi.Compilation) -> None:
        assert compilation.get_preferred_memory_alignment_for_input(1) == 256
        assert compilation.get_preferred_memory_padding_for_input(0) == 32
        assert compilation.get_preferred_memory_alignment_for_output(0) == 16
        assert compilation.get_preferred_memory_padding_for_output(0) == 1
        assert compilation.get_preferred_memory_alignment_for_output(1) == 256
        assert compilation.get_preferred_memory_padding_for_output(1) == 32

    @pytest.mark.parametrize("index", [2, -1, 2**70, "x"])
    def test_memory_preference_of_a_wrong_index_is_refused(
        self, compilation: nnapi.Compilation, index: Any
    ) -> None:
        for call in (
            compilation.get_preferred_memory_alignment_for_input,
            compilation.get_preferred_memory_padding_for_input,
            compilation.get_preferred_memory_alignment_for_output,
            compilation.get_preferred_memory_padding_for_output,
        ):
            with answers(BAD_DATA):
                call(index)

    def test_compilation_for_all_devices_prefers_the_alignment_of_the_reference(self) -> None:
        with nnapi.Compilation(finished()) as compilation:
            compilation.finish()
            alignment = ReferenceDevice().capabilities.alignment
            assert compilation.get_preferred_memory_alignment_for_input(0) == alignment


class TestCachingArguments:
    @pytest.mark.parametrize(
        ("directory", "token", "code"),
        [
            (None, TOKEN, UNEXPECTED_NULL),
            ("/tmp", None, UNEXPECTED_NULL),
            ("/tmp", TOKEN[:31], BAD_DATA),
            ("/tmp", TOKEN + b"x", BAD_DATA),
            ("/tmp", b"", BAD_DATA),
            ("/tmp", "x" * 32, BAD_DATA),
            (3, TOKEN, BAD_DATA),
        ],
    )
    def test_caching_rejects_wrong_arguments(
        self, directory: Any, token: Any, code: nnapi.ResultCode
    ) -> None:
        with answers(code):
            nnapi.Compilation(finished()).set_caching(directory, token)

    def test_trust_token_must_be_true_or_false(self) -> None:
        with answers(BAD_DATA):
            nnapi.Compilation(finished()).set_caching("/tmp", TOKEN, "yes")  # type: ignore[arg-type]

    def test_caching_from_fds_rejects_wrong_descriptors(self, tmp_path: Path) -> None:
        with (tmp_path / "file").open("w+b") as file:
            compilation = nnapi.Compilation.create_for_devices(finished(), ["reference"])
            for models, datas, token, code in (
                (None, [], TOKEN, UNEXPECTED_NULL),
                ([], None, TOKEN, UNEXPECTED_NULL),
                ([None], [], TOKEN, UNEXPECTED_NULL),
                ([], [], None, UNEXPECTED_NULL),
                ([file.fileno()], [-1], TOKEN, BAD_DATA),
                ([file.fileno(), 10**6], [], TOKEN, BAD_DATA),
                (["1"], [], TOKEN, BAD_DATA),
                ([], [], b"short", BAD_DATA),
                (file.fileno(), [], TOKEN, BAD_DATA),
            ):
                with answers(code):
                    compilation.set_caching_from_fds(models, datas, token)  # type: ignore[arg-type]

    def test_cache_descriptors_are_duplicated_and_closed(self, tmp_path: Path) -> None:
        with (tmp_path / "file").open("w+b") as file, (tmp_path / "other").open("w+b") as other:
            compilation = nnapi.Compilation.create_for_devices(finished(), ["reference"])
            compilation.set_caching_from_fds([file.fileno()], [other.fileno()], TOKEN)
            compilation.set_caching_from_fds([file.fileno()], [], TOKEN)
            # The compilation has closed none but its own.
            assert os.fstat(file.fileno()).st_size == 0
        del compilation
        gc.collect()


class TestFree:
    """Everything may be freed at any time (NNAPI's free group)."""

    def test_unfinished_compilation_is_freed(self) -> None:
        for compilation in (
            nnapi.Compilation(finished()),
            nnapi.Compilation.create_for_devices(finished(), ["reference"]),
        ):
            compilation.close()
            compilation.close()
            with answers(BAD_STATE):
                compilation.finish()

    def test_a_finished_one_that_is_dropped(self) -> None:
        with does_not_raise():
            nnapi.Compilation(weighted()).finish()
            gc.collect()


class TestDevices:
    def test_devices_are_listed_with_the_reference_device_last(self) -> None:
        devices = [nnapi.get_device(index) for index in range(nnapi.get_device_count())]
        assert devices[-1].name == "reference"
        assert not any(d.info.only_when_named for d in devices)
        last: nnapi.Device = devices[-1]
        assert (last.type.name, last.feature_level.name) == ("CPU", "LEVEL_8")
        assert last.version == ReferenceDevice.version
        assert repr(last) == "<penstock.nnapi.Device 'reference'>"
        assert not last.get_extension_support("com.example.fibonacci")
        last.wait()

    @pytest.mark.parametrize("index", [10**6, -1, "0", 0.0])
    def test_get_device_rejects_index_beyond_the_last(self, index: Any) -> None:
        with answers(BAD_DATA):
            nnapi.get_device(index)
        with answers(UNEXPECTED_NULL):
            nnapi.get_device(None)  # type: ignore[arg-type]

    def test_get_device_by_name_finds_usable_devices(self) -> None:
        assert nnapi.get_device_by_name("null").name == "null"
        for name in ("nobody", 3):
            with answers(BAD_DATA):
                nnapi.get_device_by_name(name)  # type: ignore[arg-type]
