"""`GpuDelegate`, `HexagonDelegate`, `CoreMLDelegate`: which device, which nodes, which options;
over doubles of the hardware.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import tflite
from penstock.delegates import (
    CoreMLDelegate,
    DriverDelegate,
    GpuDelegate,
    GpuExperimentalFlags as Flags,
    HexagonDelegate,
    NnapiDelegate,
)
from penstock.delegates.coreml import Host, core_ml_missing, neural_engine_missing
from penstock.delegates.fitting import Fit, fitting
from penstock.drivers.reference import ReferenceDevice
from penstock.errors import DeviceUnavailable, InputError
from penstock.hal import Device, DeviceType, PrepareConfig, PreparedModel, Support
from penstock.ir import Model
from penstock.runtime.discovery import Manager, manager
from penstock.testing.contract.delegates import Subject, run_delegate_contract
from penstock.testing.doubles import RecordingDevice, SimulatedDevice
from penstock.testing.doubles.intercepting import InterceptingDevice
from tests.support_devices import NumpyDevice
from tests.support_webgpu import needs_webgpu, software
from tests.unit.delegates import graphs
from tests.unit.loaders.files import FileBuilder, quantization

ACCELERATOR, GPU = DeviceType.ACCELERATOR, DeviceType.GPU
CHAIN = graphs.chain("NEG", "ABS", "NEG")
X = np.array([1, -2], np.float32)


def gpu(name: str = "gpu", *families: str, time: float = 0.5, of: Device | None = None) -> Device:
    return SimulatedDevice(of or ReferenceDevice(), name, GPU, families, {"float32": time})


def dsp(name: str = "dsp") -> Device:
    return SimulatedDevice(ReferenceDevice(), name, ACCELERATOR, ("hexagon",), {"int8": 0.2})


def coreml(*families: str, name: str = "coreml") -> Device:
    return SimulatedDevice(ReferenceDevice(), name, ACCELERATOR, ("coreml", *families))


class Real(InterceptingDevice):
    """A double that says that it is hardware."""

    @property
    def capabilities(self) -> Any:
        from msgspec.structs import replace

        return replace(super().capabilities, simulated=False)


class Relaxed(InterceptingDevice):
    """A device of the class `relaxed`."""

    def supported_operations(self, model: Model) -> Sequence[Support]:
        given = super().supported_operations(model)
        return [Support(s.supported, s.reason, "relaxed") for s in given]


class Broken(InterceptingDevice):
    def check(self) -> str | None:
        return "its fan is gone"


class Entry:
    """An entry point of a third party's driver."""

    def __init__(self, device: Device) -> None:
        self.name, self._device = device.name, device

    def load(self) -> Callable[[], Device]:
        return lambda: self._device


MODULES_WITH_A_MANAGER = (
    "runtime.session", "delegates.kinds", "delegates.driver", "delegates.nnapi",
    "delegates.fitting",
)  # fmt: skip


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes some devices the only ones there are."""

    def replace(*devices: Device) -> None:
        found = Manager(lambda: tuple(map(Entry, devices)))
        for module in MODULES_WITH_A_MANAGER:
            monkeypatch.setattr(f"penstock.{module}.manager", found)

    return replace


def opened(content: bytes, *delegates: Any) -> tflite.Interpreter:
    made = tflite.Interpreter(
        model_content=content,
        experimental_delegates=list(delegates),
        devices=["reference"],
        cache=False,
    )
    made.allocate_tensors()
    return made


def run(interpreter: tflite.Interpreter, value: Any) -> Any:
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], value)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def mixed() -> bytes:
    """Floats to bytes, a RELU on bytes, back to floats, NEG, CAST to whole numbers, ABS on them:
    nodes 0 to 5.
    """
    file = FileBuilder()
    scale = {"quantization": quantization([0.5], [0])}
    x = file.tensor("x", [2])
    q, r = (file.tensor(n, [2], "INT8", **scale) for n in "qr")
    f, g = file.tensor("f", [2]), file.tensor("g", [2])
    n, m = file.tensor("n", [2], "INT32"), file.tensor("m", [2], "INT32")
    file.operator("QUANTIZE", [x], [q], {})
    file.operator("RELU", [q], [r])
    file.operator("DEQUANTIZE", [r], [f], {})
    file.operator("NEG", [f], [g], {})
    file.operator("CAST", [g], [n], {})
    file.operator("ABS", [n], [m], {})
    return file.finish([x], [m])


def quantised(count: int = 2) -> bytes:
    """RELUs on int8."""
    file = FileBuilder()
    scale = {"quantization": quantization([0.5], [0])}
    tensors = [file.tensor(f"t{i}", [2], "INT8", **scale) for i in range(count + 1)]
    for x, y in pairwise(tensors):
        file.operator("RELU", [x], [y])
    return file.finish([tensors[0]], [tensors[-1]])


SUBJECTS = {
    "gpu": Subject(lambda: GpuDelegate(device=gpu()), CHAIN, rtol=0, atol=0),
    "gpu, int8": Subject(lambda: GpuDelegate(device=gpu()), quantised(), rtol=0, atol=0),
    "gpu, reduced": Subject(lambda: GpuDelegate(True, device=gpu()), graphs.convolved("ABS")),
    "gpu, all subsets": Subject(
        lambda: GpuDelegate(max_delegated_partitions=0, device=gpu()), mixed(), rtol=0, atol=0
    ),
    "hexagon": Subject(lambda: HexagonDelegate(device=dsp()), quantised(3), rtol=0, atol=0),
    "coreml": Subject(
        lambda: CoreMLDelegate(device=coreml("neural_engine")), CHAIN, rtol=0, atol=0
    ),
    "coreml, everywhere": Subject(
        lambda: CoreMLDelegate("all", device=coreml()), graphs.convolved("ABS")
    ),
}


@pytest.mark.parametrize("name", SUBJECTS)
def test_delegates_pass_the_contract_suite_over_a_simulated_device(name: str) -> None:
    found = run_delegate_contract(SUBJECTS[name])
    assert [(r.check, r.message) for r in found if r.outcome == "failed"] == []
    assert sum(r.outcome == "passed" for r in found) >= 8


def taken(delegate: DriverDelegate, content: bytes = b"") -> list[int]:
    """The nodes of `mixed` (or of *content*) that a delegate takes; every other has a reason."""
    content = content or mixed()
    interpreter = opened(content, delegate)
    count = len(opened(content)._get_ops_details())
    assert all(delegate.reasons.values())
    interpreter.close()
    return [i for i in range(count) if i not in delegate.reasons]


class TestNodes:
    def test_a_gpu_takes_floats_and_quantised_bytes(self) -> None:
        delegate = GpuDelegate(device=gpu())
        assert taken(delegate) == [0, 1, 2, 3]
        assert "n is int32; a GPU is given float32, float16 and quantised" in delegate.reasons[5]

    def test_gpu_without_enable_quant_leaves_quantised_nodes(self) -> None:
        delegate = GpuDelegate(experimental_flags=Flags.NONE, device=gpu())
        assert taken(delegate) == [3]
        assert "without ENABLE_QUANT" in delegate.reasons[1]

    def test_a_hexagon_dsp_takes_quantised_bytes(self) -> None:
        delegate = HexagonDelegate(min_nodes_per_partition=0, device=dsp())
        assert taken(delegate) == [1]
        assert "x is float32; a Hexagon DSP is given quantised 8-bit" in delegate.reasons[0]

    def test_core_ml_takes_floats(self) -> None:
        delegate = CoreMLDelegate("all", min_nodes_per_partition=0, device=coreml())
        assert taken(delegate) == [3]
        assert "q is quantised int8; Core ML is given float32" in delegate.reasons[1]

    def test_delegates_take_half_precision(self) -> None:
        file = FileBuilder()
        x, y = file.tensor("x", [2], "FLOAT16"), file.tensor("y", [2], "FLOAT16")
        file.operator("ABS", [x], [y], {})
        content = file.finish([x], [y])
        for delegate in (
            GpuDelegate(device=gpu()),
            CoreMLDelegate("all", min_nodes_per_partition=0, device=coreml()),
        ):
            assert [r for r in taken_reasons(delegate, content) if "is given" in r] == []

    def test_the_devices_own_reason_stands_where_the_type_is_no_obstacle(self) -> None:
        some = SimulatedDevice(NumpyDevice("some", {"NEG"}), "gpu", GPU)
        delegate = GpuDelegate(device=some)
        opened(CHAIN, delegate).close()
        assert delegate.reasons == {1: "gpu: some has no ABS"}

    def test_delegate_that_takes_nothing_warns(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, "penstock"):
            interpreter = opened(CHAIN, HexagonDelegate(device=dsp()))
        assert "HexagonDelegate(dsp) takes none of 3 nodes" in caplog.text
        np.testing.assert_array_equal(run(interpreter, X), -abs(X))


def taken_reasons(delegate: DriverDelegate, content: bytes) -> list[str]:
    opened(content, delegate).close()
    return list(delegate.reasons.values())


class TestSelection:
    def test_the_fastest_gpu_of_any_driver_is_taken(self, only: Callable[..., None]) -> None:
        only(gpu("slow", time=0.9), gpu("fast", time=0.1), dsp(), ReferenceDevice())
        assert [d.name for d in GpuDelegate().devices] == ["fast"]

    def test_hardware_is_chosen_before_a_simulator(self, only: Callable[..., None]) -> None:
        only(gpu("double", time=0.1), Real(gpu("hardware", time=0.9)))
        delegate = GpuDelegate()
        assert (delegate.devices[0].name, delegate.simulated) == ("hardware", False)

    def test_device_of_the_requested_class_is_chosen_before_a_faster_one(
        self, only: Callable[..., None]
    ) -> None:
        only(Relaxed(gpu("quick", time=0.1)), gpu("exact", time=0.9))
        assert GpuDelegate().devices[0].name == "exact"
        assert GpuDelegate(is_precision_loss_allowed=True).devices[0].name == "quick"

    def test_a_device_that_must_be_named_is_found(self, only: Callable[..., None]) -> None:
        only(coreml("neural_engine"), dsp(), ReferenceDevice())
        assert CoreMLDelegate().devices[0].name == "coreml"
        assert HexagonDelegate().devices[0].name == "dsp"

    def test_families_choose_among_gpus(self, only: Callable[..., None]) -> None:
        only(gpu("c", "cuda", time=0.1), gpu("o", "opencl"), gpu("g", "opengl"))
        for flag, name in ((Flags.CL_ONLY, "o"), (Flags.GL_ONLY, "g"), (Flags.NONE, "c")):
            assert GpuDelegate(experimental_flags=flag).devices[0].name == name

    def test_missing_kind_of_device_is_explained(self, only: Callable[..., None]) -> None:
        only(Broken(gpu("mine")), dsp(), ReferenceDevice())
        with pytest.raises(DeviceUnavailable) as caught:
            GpuDelegate()
        assert str(caught.value) == (
            "no GPU (a device of type gpu) is usable; found: dsp: its type is accelerator; "
            "mine: its fan is gone; reference: its type is cpu"
        )
        with pytest.raises(DeviceUnavailable, match=r"no Core ML .a device of family coreml"):
            CoreMLDelegate()
        only(ReferenceDevice())
        with pytest.raises(DeviceUnavailable, match="of type accelerator and of family hexagon"):
            HexagonDelegate()

    def test_a_stand_in_is_taken_only_if_it_is_named(self, only: Callable[..., None]) -> None:
        software = SimulatedDevice(ReferenceDevice(), "soft", DeviceType.CPU, ("software-gpu",))
        only(software, ReferenceDevice())
        with pytest.raises(DeviceUnavailable) as caught:
            GpuDelegate()
        assert str(caught.value) == (
            "no GPU (a device of type gpu) is usable; found: soft: its type is cpu; "
            "reference: its type is cpu; "
            "soft computes without such hardware, and only if it is named: device='soft'"
        )
        delegate = GpuDelegate(device="soft")
        assert (delegate.devices[0].name, delegate.simulated) == ("soft", True)
        with pytest.raises(DeviceUnavailable, match="of family opencl"):
            GpuDelegate(experimental_flags=Flags.CL_ONLY, device="soft")
        only(software, gpu())
        assert GpuDelegate().devices[0].name == "gpu"

    def test_a_stand_in_that_is_missing_says_why(self, only: Callable[..., None]) -> None:
        only(Broken(SimulatedDevice(ReferenceDevice(), "soft", DeviceType.CPU, ("software-gpu",))))
        with pytest.raises(
            DeviceUnavailable, match=r"named \(it cannot be used: its fan is gone\)"
        ):
            GpuDelegate()

    def test_a_named_device_of_another_kind(self, only: Callable[..., None]) -> None:
        only(gpu(), dsp(), ReferenceDevice())
        assert GpuDelegate(device="gpu").devices[0].name == "gpu"
        with pytest.raises(DeviceUnavailable, match=r"dsp is no GPU .*: its type is accelerator"):
            GpuDelegate(device="dsp")
        with pytest.raises(DeviceUnavailable, match="no device is named 'other'"):
            GpuDelegate(device="other")
        with pytest.raises(DeviceUnavailable, match="its families are hexagon"):
            CoreMLDelegate(device="dsp")

    def test_hexagon_goes_without_nnapi(
        self, only: Callable[..., None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        only(dsp())
        monkeypatch.setattr(NnapiDelegate, "__init__", None)
        assert not issubclass(HexagonDelegate, NnapiDelegate)
        interpreter = opened(quantised(), HexagonDelegate())
        np.testing.assert_array_equal(run(interpreter, np.array([-3, 3], np.int8)), [0, 3])


class Watched(RecordingDevice):
    """Keeps how it was asked to prepare."""

    configs: list[PrepareConfig]

    def prepare_model(self, model: Model, config: PrepareConfig) -> PreparedModel:
        self.__dict__.setdefault("configs", []).append(config)
        return super().prepare_model(model, config)


def asked(
    make: Callable[[Device], DriverDelegate], device: Device, content: bytes
) -> PrepareConfig:
    watched = Watched(device)
    interpreter = opened(content, make(watched))
    interpreter.close()
    (config,) = watched.configs
    return config


class TestGpuOptions:
    @pytest.mark.parametrize(
        ("options", "accuracy"),
        [
            ({}, "faithful"),
            ({"is_precision_loss_allowed": False}, "faithful"),
            ({"is_precision_loss_allowed": True}, "relaxed"),
            ({"inference_priority1": "min_latency"}, "relaxed"),
            (
                {"inference_priority1": "max_precision", "inference_priority2": "min_latency"},
                "faithful",
            ),
            (
                {"inference_priority1": "min_memory_usage", "is_precision_loss_allowed": False},
                "faithful",
            ),
        ],
    )
    def test_gpu_precision_option_becomes_accuracy_class(
        self, options: dict[str, Any], accuracy: str
    ) -> None:
        config = asked(lambda d: GpuDelegate(device=d, **options), gpu(), CHAIN)
        assert config.accuracy == accuracy

    def test_a_gpu_of_the_class_relaxed_asks_for_the_option(
        self, only: Callable[..., None]
    ) -> None:
        only(Relaxed(gpu()), ReferenceDevice())
        plain, reduced = GpuDelegate(), GpuDelegate(is_precision_loss_allowed=True)
        assert len(taken_reasons(plain, CHAIN)) == 3
        assert "relaxed; the policy asks for faithful" in plain.reasons[0]
        assert taken_reasons(reduced, CHAIN) == []

    @pytest.mark.parametrize(
        ("given", "preference"),
        [
            ("fast_single_answer", "fast_single_answer"),
            ("sustained_speed", "sustained_speed"),
            ("balanced", "fast_single_answer"),
        ],
    )
    def test_gpu_preference_reaches_the_device(self, given: Any, preference: str) -> None:
        config = asked(lambda d: GpuDelegate(inference_preference=given, device=d), gpu(), CHAIN)
        assert config.preference == preference

    def test_gpu_takes_the_largest_partitions(self) -> None:
        part = SimulatedDevice(NumpyDevice("some", {"NEG"}), "gpu", GPU)
        file = graphs.chain("NEG", "NEG", "ABS", "NEG")
        for most, count in ((1, 1), (0, 2), (2, 2)):
            delegate = GpuDelegate(max_delegated_partitions=most, device=part)
            with opened(file, delegate) as interpreter:
                run(interpreter, X)
                assert len(delegate.plans) == count

    def test_gpu_serialisation_caches_each_subset(self, tmp_path: Path) -> None:
        from penstock.testing.doubles import LabDevice

        lab = LabDevice()
        device = SimulatedDevice(lab, "lab-gpu", GPU, (), {"float32": 0.5})
        flags = Flags.ENABLE_QUANT | Flags.ENABLE_SERIALIZATION
        for loads in (0, 1):
            delegate = GpuDelegate(
                experimental_flags=flags,
                serialization_dir=tmp_path,
                model_token="chain",
                device=device,
            )
            opened(graphs.chain("RELU", "RELU"), delegate).close()
            assert (lab.compiles, lab.loads) == (1, loads)

    def test_unusable_serialization_directory_is_refused(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        from penstock.testing.doubles import LabDevice

        (tmp_path / "file").write_bytes(b"in the way")
        flags = Flags.ENABLE_QUANT | Flags.ENABLE_SERIALIZATION
        with pytest.raises(InputError, match="serialization_dir must be a directory"):
            GpuDelegate(experimental_flags=flags, serialization_dir=tmp_path / "file", device=gpu())
        place = tmp_path / "file" / "below"
        delegate = GpuDelegate(
            experimental_flags=flags,
            serialization_dir=place,
            device=SimulatedDevice(LabDevice(), "lab-gpu", GPU, (), {"float32": 0.5}),
        )
        with caplog.at_level(logging.WARNING, "penstock"):
            opened(graphs.chain("RELU", "RELU"), delegate).close()
        (told,) = [r.getMessage() for r in caplog.records if r.name == "penstock.delegates.driver"]
        assert told.startswith(f"serialization_dir {place} keeps nothing: Unreadable: ")

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"inference_preference": "fast"}, "inference_preference 'fast' is not one of"),
            ({"inference_preference": ["fast"]}, r"inference_preference \['fast'\] is not one"),
            ({"inference_priority1": "auto"}, 'inference_priority1 is "auto"'),
            (
                {"inference_priority2": "max_precision"},
                "is given twice: max_precision, max_precision",
            ),
            ({"inference_priority3": "min_latency"}, "follows one that is left open"),
            ({"inference_priority2": "speed"}, "inference_priority2 'speed' is not one of"),
            ({"experimental_flags": 16}, "are GpuExperimentalFlags, not 16"),
            ({"experimental_flags": "quant"}, "are GpuExperimentalFlags, not 'quant'"),
            ({"experimental_flags": 6}, "CL_ONLY and GL_ONLY"),
            ({"experimental_flags": 8}, "needs a serialization_dir"),
            ({"serialization_dir": "here"}, "need ENABLE_SERIALIZATION"),
            ({"max_delegated_partitions": -1}, "0 or more, not -1"),
        ],
    )
    def test_gpu_delegate_rejects_wrong_options(self, options: dict[str, Any], words: str) -> None:
        with pytest.raises(InputError, match=words):
            GpuDelegate(device=gpu(), **options)


class TestHexagonOptions:
    def test_hexagon_powersave_level_asks_for_low_power(self) -> None:
        for level, preference in ((0, "fast_single_answer"), (3, "low_power")):
            config = asked(
                lambda d, level=level: HexagonDelegate(powersave_level=level, device=d),  # type: ignore[misc]
                dsp(),
                quantised(),
            )
            assert (config.preference, config.accuracy) == (preference, "faithful")

    def test_hexagon_debug_level_logs_rejected_nodes(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        delegate = HexagonDelegate(1, 0, True, True, min_nodes_per_partition=1, device=dsp())
        with caplog.at_level(logging.INFO, "penstock.delegates.hexagon"):
            interpreter = opened(mixed(), delegate)
            assert "HexagonDelegate(dsp) leaves node 0: x is float32" in caplog.text
            run(interpreter, X)
        assert "RELU" in caplog.text
        assert "step 0 on dsp (simulated: no such hardware ran)" in caplog.text

    def test_hexagon_logs_nothing_by_default(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, "penstock.delegates"):
            run(opened(quantised(), HexagonDelegate(device=dsp())), np.array([1, 2], np.int8))
        assert caplog.text == ""

    @pytest.mark.parametrize("name", ["debug_level", "powersave_level", "min_nodes_per_partition"])
    def test_hexagon_delegate_rejects_wrong_options(self, name: str) -> None:
        with pytest.raises(InputError, match=f"{name} is a whole number, 0 or more, not True"):
            HexagonDelegate(device=dsp(), **{name: True})


class TestCoreMLOptions:
    def test_the_neural_engine_is_asked_for(self) -> None:
        with pytest.raises(DeviceUnavailable, match=r"no neural engine: looked for .*found coreml"):
            CoreMLDelegate(device=coreml())
        assert CoreMLDelegate("all", device=coreml()).simulated
        assert CoreMLDelegate(device=coreml("neural_engine")).simulated

    def test_the_machine_has_a_say_where_the_device_is_hardware(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        device = Real(coreml("neural_engine"))
        for host, words in (
            (Host("darwin", "x86_64", release=(10, 14, 6)), "has no neural engine"),
            (Host("ios", "arm64", "iPhone10,6"), "too old: Core ML uses those of the A12"),
        ):
            monkeypatch.setattr("penstock.delegates.coreml.this_host", lambda host=host: host)
            with pytest.raises(DeviceUnavailable, match=words):
                CoreMLDelegate(device=device)
            assert not CoreMLDelegate("all", device=device).simulated
        monkeypatch.setattr(
            "penstock.delegates.coreml.this_host", lambda: Host("darwin", "x86_64", "", (10, 14))
        )
        assert CoreMLDelegate("all", 2, device=device).info.name == "coreml"
        with pytest.raises(DeviceUnavailable, match=r"Core ML 3 is there from macOS 10.15 on"):
            CoreMLDelegate("all", 3, device=device)

    def test_core_ml_precision_option_becomes_accuracy_class(self) -> None:
        for allowed, accuracy in ((False, "faithful"), (True, "relaxed")):
            config = asked(
                lambda d, a=allowed: CoreMLDelegate("all", is_precision_loss_allowed=a, device=d),  # type: ignore[misc]
                coreml(),
                CHAIN,
            )
            assert config.accuracy == accuracy

    def test_core_ml_leaves_small_subsets(self) -> None:
        delegate = CoreMLDelegate("all", device=coreml())
        opened(graphs.chain("NEG"), delegate).close()
        assert delegate.plans == ()

    def test_core_ml_delegate_rejects_wrong_options(self) -> None:
        with pytest.raises(InputError, match="coreml_version 4 is not one of 0, 2, 3"):
            CoreMLDelegate(coreml_version=4, device=coreml())
        with pytest.raises(InputError, match="enabled_devices 'gpu' is not one of"):
            CoreMLDelegate("gpu", device=coreml())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("host", "words"),
    [
        (Host("darwin", "arm64"), ""),
        (Host("darwin", "x86_64"), "a Mac with a processor x86_64"),
        (Host("linux", "aarch64"), "no neural engine on linux"),
        (Host("ios", "arm64", "iPhone11,2"), ""),
        (Host("ios", "arm64", "iPhone17,1"), ""),
        (Host("ios", "arm64", "iPhone10,3"), "too old: Core ML uses"),
        (Host("ios", "arm64", "iPhone9,1"), "iPhone9,1 is too old"),
        (Host("ios", "arm64", "iPad7,5"), "iPad7,5 is too old"),
        (Host("ios", "arm64", "iPad8,1"), ""),
        (Host("tvos", "arm64", "AppleTV11,1"), ""),
        (Host("ios", "arm64", "iPod9,1"), "no model 'iPod9,1'"),
        (Host("ios", "arm64", ""), "no model ''"),
    ],
)
def test_machines_with_a_neural_engine(host: Host, words: str) -> None:
    found = neural_engine_missing(host)
    assert words in found
    assert bool(found) == bool(words)


def test_systems_with_a_version_of_core_ml() -> None:
    assert core_ml_missing(Host("darwin", "arm64", release=(14, 1)), 3) == ""
    assert core_ml_missing(Host("ios", "arm64"), 3) == ""
    assert "10.14 on, and this is 10.13.6" in core_ml_missing(
        Host("darwin", "x86_64", release=(10, 13, 6)), 2
    )


class TestReceipts:
    def test_receipts_say_that_a_simulated_device_ran(self) -> None:
        delegate = GpuDelegate(device=gpu())
        interpreter = opened(CHAIN, delegate)
        run(interpreter, X)
        (compiled,), (ran,) = delegate.receipts, delegate.run_receipts
        for receipt in (compiled, ran):
            assert [(s.device, s.simulated) for s in receipt.steps] == [("gpu", True)]
            assert "on gpu (simulated: no such hardware ran)" in receipt.show()
            assert '"simulated":true' in receipt.to_json()

    def test_receipts_of_hardware_do_not_mention_simulation(self) -> None:
        delegate = GpuDelegate(device=Real(gpu()))
        interpreter = opened(CHAIN, delegate)
        run(interpreter, X)
        (compiled,), (ran,) = delegate.receipts, delegate.run_receipts
        for receipt in (compiled, ran):
            assert [s.simulated for s in receipt.steps] == [False]
            assert "simulated" not in receipt.show()


class TestFitting:
    def test_gpu_delegate_fits_a_machine_with_a_gpu(self, only: Callable[..., None]) -> None:
        only(Real(gpu("mine", "cuda")), ReferenceDevice())
        found = {f.delegate: f for f in fitting()}
        assert found["GpuDelegate"] == Fit(
            "GpuDelegate", "mine", True, "mine (mine) is such a device"
        )
        assert found["HexagonDelegate"].why == "no installed driver has a device of this kind"
        assert [f.delegate for f in found.values() if f.fits] == ["GpuDelegate"]

    def test_fit_names_the_option_that_a_relaxed_device_needs(
        self, only: Callable[..., None]
    ) -> None:
        only(Relaxed(Real(gpu("mine"))))
        assert "give is_precision_loss_allowed=True" in fitting()[1].why

    def test_broken_device_and_simulator_do_not_fit(self, only: Callable[..., None]) -> None:
        only(Broken(gpu("mine")), dsp(), coreml())
        core, graphics, hexagon, runtime = fitting()
        assert graphics.why == "mine cannot be used: its fan is gone"
        assert hexagon.why == "dsp only stands for such hardware"
        assert "no neural engine" in core.why
        assert "no device but the reference one" in runtime.why
        assert not any(f.fits for f in (core, graphics, hexagon, runtime))

    def test_a_machine_with_an_ordinary_driver(self, only: Callable[..., None]) -> None:
        only(NumpyDevice("cpu-engine"), ReferenceDevice())
        found = fitting()[-1]
        assert (found.delegate, found.device, found.fits) == ("NnapiDelegate", "cpu-engine", True)


def test_qualcomms_library_on_another_processor_only_stands_for_a_dsp(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from penstock.drivers.onnxruntime import OnnxRuntimeDevice
    from penstock.drivers.onnxruntime.installation import OTHERS, Installation

    qnn = next(p for p, *_ in OTHERS if "hexagon" in p.families)
    cuda = next(p for p, *_ in OTHERS if "cuda" in p.families)
    for machine, simulated in (("x86_64", True), ("AMD64", True), ("aarch64", False)):
        monkeypatch.setattr("platform.machine", lambda machine=machine: machine)
        device = OnnxRuntimeDevice(qnn, Installation("1", (qnn,)))
        assert device.capabilities.simulated is simulated
        assert not OnnxRuntimeDevice(cuda, Installation("1", (cuda,))).capabilities.simulated


@needs_webgpu
@pytest.mark.parametrize("content", [graphs.convolved("ABS"), quantised(3)], ids=["float", "int8"])
def test_gpu_delegate_passes_the_contract_suite_on_software(content: bytes) -> None:
    device = software()

    def make() -> GpuDelegate:
        return GpuDelegate(max_delegated_partitions=0, device=device)

    found = run_delegate_contract(Subject(make, content))
    assert [(r.check, r.message) for r in found if r.outcome == "failed"] == []
    assert sum(r.outcome == "passed" for r in found) >= 8


@needs_webgpu
def test_gpu_delegate_without_precision_loss_leaves_what_was_never_measured() -> None:
    relaxed = Relaxed(software())
    assert taken(GpuDelegate(is_precision_loss_allowed=True, device=relaxed), quantised()) == [0, 1]
    for strict in (GpuDelegate(device=relaxed), GpuDelegate(False, device=relaxed)):
        assert taken(strict, quantised()) == []
    assert taken(GpuDelegate(None, "balanced", "min_latency", device=relaxed), quantised()) == [
        0,
        1,
    ]


@pytest.mark.parametrize("engine", ["openvino", "onnxruntime", "xnnpack"])
def test_delegates_pass_the_contract_suite_over_an_engine(engine: str) -> None:
    """A real engine behind the double: compiled artefacts, its own refusals, its own arithmetic."""
    real = next((i for i in manager.infos() if i.driver == engine and i.usable), None)
    if real is None:
        pytest.skip(f"{engine} is not installed")
    device = manager.by_name(real.name)
    assert device is not None

    def make() -> GpuDelegate:
        return GpuDelegate(device=SimulatedDevice(device, "gpu", GPU, (), {"float32": 0.1}))

    found = run_delegate_contract(Subject(make, graphs.convolved("ABS")))
    assert [(r.check, r.message) for r in found if r.outcome == "failed"] == []
    assert sum(r.outcome == "passed" for r in found) >= 8


@pytest.mark.parametrize(
    ("network", "make", "least"),
    [
        ("hello_world_float", lambda: GpuDelegate(device=gpu(), max_delegated_partitions=0), 3),
        ("hello_world_float", lambda: CoreMLDelegate("all", device=coreml()), 3),
        ("hello_world_int8", lambda: HexagonDelegate(device=dsp()), 3),
        ("hello_world_int8", lambda: GpuDelegate(device=gpu()), 3),
        ("micro_speech_int8", lambda: HexagonDelegate(device=dsp()), 3),
        ("micro_speech_int8", lambda: GpuDelegate(device=gpu()), 3),
    ],
)
def test_networks_of_the_corpus_keep_their_results(
    network: str, make: Callable[[], DriverDelegate], least: int, corpus: Path
) -> None:
    content = (corpus / "models" / "networks" / f"{network}.tflite").read_bytes()
    delegate = make()
    with opened(content, delegate) as with_it, opened(content) as without:
        detail = without.get_input_details()[0]
        rng = np.random.default_rng(7)
        value = rng.integers(-100, 100, detail["shape"]).astype(detail["dtype"])
        np.testing.assert_array_equal(run(with_it, value), run(without, value))
        taken_nodes = sum(len(s.operations) for r in delegate.receipts for s in r.steps)
        assert taken_nodes >= least
        assert all(s.simulated for r in delegate.run_receipts for s in r.steps)
