from __future__ import annotations

import gc
import math
import os
import signal
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
import pytest

import penstock
from penstock.cli.failures import UsageError
from penstock.cli.opening import check_devices
from penstock.errors import InputError, PlacementError
from penstock.hal import (
    Capabilities,
    DeviceBase,
    PerformanceInfo,
    PrepareConfig,
    PreparedModel,
    Support,
)
from penstock.hal.loading import MAX_DEVICES
from penstock.ir import Model
from penstock.runtime import discovery
from penstock.runtime.discovery import Manager
from penstock.runtime.entries import DriverEntry
from tests.unit.execution.fakes import add_relu, f32


class FakeDevice(DeviceBase):
    version = "1"

    def __init__(self, name: str, **overrides: Any) -> None:
        self.name = name
        for member, value in overrides.items():
            setattr(self, member, value)

    def supported_operations(self, model: Model) -> list[Support]:
        return [Support(supported=True)] * len(model.operations)

    def prepare_model(self, model: Model, config: PrepareConfig) -> PreparedModel:
        raise AssertionError("nothing is compiled here")


def claims(**overrides: Any) -> dict[str, Any]:
    return {"capabilities": Capabilities(**overrides)}


class FakeEntry:
    """An entry point whose target need not be importable here."""

    def __init__(self, name: str, make: Any) -> None:
        self.name, self._make = name, make

    def load(self) -> Any:
        return self._make


def manager_of(**drivers: Any) -> Manager:
    found: tuple[DriverEntry, ...] = tuple(FakeEntry(n, make) for n, make in drivers.items())
    return Manager(lambda: found)


def explode(*_: object) -> NoReturn:
    raise RuntimeError("no such library")


class Unshowable:
    def __repr__(self) -> str:
        return explode()


class UnshowableError(Exception):
    def __repr__(self) -> str:
        return explode()


def explode_unshowably(*_: object) -> NoReturn:
    raise UnshowableError


def ignore(*_: object) -> None:
    """Sets nothing."""


def raising(member: str) -> FakeDevice:
    """A device whose *member* raises as it is read."""
    kind = type("Raising", (FakeDevice,), {member: property(explode, ignore)})
    device: FakeDevice = kind("raising")
    return device


METADATA = ("name", "version", "type", "feature_level", "capabilities", "hal_version")


def test_the_reference_device_comes_last() -> None:
    manager = manager_of(
        reference=lambda: FakeDevice("reference"), zebra=lambda: FakeDevice("zebra")
    )
    assert [d.name for d in manager.choose(None)] == ["zebra", "reference"]


def test_a_driver_may_bring_several_devices() -> None:
    manager = manager_of(many=lambda: [FakeDevice("a"), FakeDevice("b")])
    assert [d.name for d in manager.choose(None)] == ["a", "b"]


def test_a_broken_driver_is_a_reason_and_no_crash() -> None:
    manager = manager_of(broken=explode, good=lambda: FakeDevice("good"))
    infos = {i.name: i for i in manager.infos()}
    assert not infos["broken"].usable
    assert "no such library" in infos["broken"].reason
    assert [d.name for d in manager.choose(None)] == ["good"]


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"check": lambda: "needs a card"}, "needs a card"),
        ({"hal_version": 99}, "speaks HAL 99"),
        ({"cache_files_needed": lambda: (33, 0)}, "33"),
        ({"cache_files_needed": lambda: (0, -1)}, "-1"),
        ({"version": ""}, "no version"),
        ({"version": 3}, "its version is 3"),
        ({"version": "1\x1b[2J"}, r"its version is '1\x1b[2J': a version is one line"),
        ({"hal_version": "1"}, "speaks HAL '1'"),
        ({"type": "cpu"}, "its type is 'cpu'"),
        ({"type": None}, "its type is None"),
        ({"feature_level": 0}, "its feature level is 0"),
        ({"feature_level": 99}, "its feature level is 99; 1 to 8"),
        ({"feature_level": "8"}, "its feature level is '8'"),
        ({"feature_level": True}, "its feature level is True"),
        ({"capabilities": None}, "its capabilities are None"),
        ({"capabilities": {}}, "its capabilities are {}"),
        ({"capabilities": Capabilities(performance=None)}, "performance"),  # type: ignore[arg-type]
        (claims(performance={"float32": PerformanceInfo(-1, 1)}), "execution_time -1, which is no"),
        (claims(default_performance=PerformanceInfo(math.nan, 1)), "execution_time nan, which is"),
        (claims(while_performance=PerformanceInfo(1, 0)), "while_performance has power_usage 0"),
        (claims(performance={"float33": PerformanceInfo()}), "for 'float33', which is no element"),
        (claims(performance={"{0}": PerformanceInfo()}), "for '{0}', which is no element type"),
        (claims(dispatch_ns=-1), "of its capabilities, dispatch_ns is -1, which is below 0"),
        (claims(concurrent_executions=-1), "concurrent_executions is -1, which is below 0"),
        (claims(transfer_bytes_per_second=0.0), "transfer_bytes_per_second is 0, which is no"),
        (claims(alignment=48), "alignment is 48, not a power of two up to 65536"),
        ({"capabilities": Capabilities(only_when_named="x")}, "only_when_named"),  # type: ignore[arg-type]
        ({"cache_files_needed": lambda: (1, 1, 1)}, "(1, 1, 1) cache files"),
        ({"cache_files_needed": lambda: (1,)}, "(1,) cache files"),
        ({"cache_files_needed": lambda: (1.0, 0)}, "(1.0, 0) cache files"),
        ({"cache_files_needed": lambda: (True, 0)}, "(True, 0) cache files"),
        ({"cache_files_needed": lambda: None}, "None cache files"),
        ({"cache_files_needed": None}, "TypeError"),
        ({"cache_files_needed": explode}, "no such library"),
        ({"check": explode}, "no such library"),
        ({"check": explode_unshowably}, "UnshowableError object"),
        ({"check": lambda: False}, "its check answers False"),
        ({"check": lambda: 5}, "its check answers 5"),
        ({"type": Unshowable()}, "Unshowable object"),
        ({"type": "long" * 1000}, "longlong"),
    ],
)
def test_a_device_that_fails_its_checks_is_listed_with_the_reason(
    overrides: dict[str, Any], reason: str
) -> None:
    manager = manager_of(x=lambda: FakeDevice("x", **overrides), y=lambda: FakeDevice("y"))
    info = {i.name: i for i in manager.infos()}["x"]
    assert not info.usable
    assert reason in info.reason
    assert [d.name for d in manager.choose(None)] == ["y"]
    assert len(info.reason) < 500
    assert manager.by_name("x") is None
    with pytest.raises(PlacementError, match="cannot be used"):
        manager.choose(["x"])
    with pytest.raises(PlacementError, match="cannot be used"):
        manager.choose([FakeDevice("x", **overrides)])


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2J", "a\0", "a\u202eb", "a\ud800"], ids=ascii)
def test_a_name_that_is_not_one_line_of_print_is_refused(name: str) -> None:
    manager = manager_of(driver=lambda: FakeDevice(name), y=lambda: FakeDevice("y"))
    info = manager.infos()[0]
    assert (info.name, info.usable) == ("driver", False)
    assert info.reason == f"its name is {name!r}: a name is one line of characters that print"
    with pytest.raises(PlacementError, match="'FakeDevice' cannot be used"):
        manager.choose([FakeDevice(name)])


@pytest.mark.parametrize("name", [7, "", "  ", None, b"x", Unshowable()])
def test_a_device_without_a_name_has_its_drivers(name: Any) -> None:
    manager = manager_of(driver=lambda: FakeDevice(name), y=lambda: FakeDevice("y"))
    info = manager.infos()[0]
    assert (info.name, info.driver, info.usable) == ("driver", "driver", False)
    assert "its name is" in info.reason
    assert [d.name for d in manager.choose(None)] == ["y"]
    with pytest.raises(PlacementError, match="'FakeDevice' cannot be used"):
        manager.choose([FakeDevice(name)])


@pytest.mark.parametrize("member", METADATA)
def test_a_device_that_raises_as_it_is_read_is_listed_with_the_reason(member: str) -> None:
    manager = manager_of(driver=lambda: raising(member), y=lambda: FakeDevice("y"))
    info = manager.infos()[0]
    assert info.name == ("driver" if member == "name" else "raising")
    assert not info.usable
    assert f"its {member} cannot be read" in info.reason
    assert "no such library" in info.reason
    assert [d.name for d in manager.choose(None)] == ["y"]
    with pytest.raises(PlacementError, match="cannot be used"):
        manager.choose([raising(member)])


@pytest.mark.parametrize("member", ["prepare_model", "supported_operations"])
def test_a_device_without_its_methods_is_none(member: str) -> None:
    for wrong in (raising(member), FakeDevice("x", **{member: None})):
        manager = manager_of(driver=lambda wrong=wrong: wrong, y=lambda: FakeDevice("y"))
        assert "is no device" in manager.infos()[0].reason
        with pytest.raises(InputError, match="neither a device"):
            manager.choose([wrong])


def test_readable_properties_of_a_broken_device_are_shown() -> None:
    capabilities = Capabilities(alignment=128)
    device = FakeDevice("x", version="2.5", type="cpu", capabilities=capabilities)
    info = manager_of(driver=lambda: device).infos()[0]
    assert (info.version, info.type, info.capabilities) == ("2.5", "other", capabilities)


def test_numbers_of_numpy_are_numbers() -> None:
    measured = Capabilities(performance={"int8": PerformanceInfo(np.float64(0.5), np.float32(1))})  # type: ignore[arg-type]
    assert manager_of(x=lambda: FakeDevice("x", capabilities=measured)).infos()[0].usable


def test_metadata_is_read_once() -> None:
    reads: list[str] = []

    class Counting(FakeDevice):
        def __getattribute__(self, name: str) -> Any:
            if name in METADATA:
                reads.append(name)
            return super().__getattribute__(name)

    manager = manager_of(x=lambda: Counting("x"))
    for _ in range(3):
        manager.infos()
        manager.choose(None)
        manager.choose(["x"])
    assert sorted(reads) == sorted(METADATA)


@pytest.mark.parametrize(
    ("made", "shown"),
    [(None, "None"), (5, "5"), ("cpu", "'cpu'"), (b"cpu", "b'cpu'"), ({"a": 1}, "{'a': 1}")],
)
def test_a_driver_that_makes_no_device_is_a_reason(made: Any, shown: str) -> None:
    manager = manager_of(driver=lambda: made, y=lambda: FakeDevice("y"))
    info = manager.infos()[0]
    assert (info.name, info.usable) == ("driver", False)
    assert f"made {shown}, which is no device" in info.reason
    assert len(manager.infos()) == 2
    assert [d.name for d in manager.choose(None)] == ["y"]


@pytest.mark.parametrize("collect", [list, tuple, iter, set, lambda ds: (d for d in ds)])
def test_devices_come_in_anything_to_iterate_over(collect: Callable[[Any], Any]) -> None:
    manager = manager_of(many=lambda: collect([FakeDevice("a"), FakeDevice("b")]))
    assert {i.name for i in manager.infos() if i.usable} == {"a", "b"}


def test_object_that_is_no_device_leaves_other_devices() -> None:
    manager = manager_of(many=lambda: [FakeDevice("a"), None, FakeDevice("b")])
    assert [(i.name, i.usable) for i in manager.infos()] == [
        ("a", True),
        ("many", False),
        ("b", True),
    ]


def test_a_driver_may_bring_no_device() -> None:
    assert manager_of(none=list).infos() == []


def test_an_iterator_that_raises_or_never_ends_is_a_reason() -> None:
    def endless() -> Iterator[Any]:
        while True:
            yield FakeDevice("again")

    def breaking() -> Iterator[Any]:
        yield FakeDevice("first")
        explode()

    reasons = [i.reason for i in manager_of(a=endless, b=breaking).infos()]
    assert len(reasons) == 2
    assert f"more than {MAX_DEVICES} devices" in reasons[0]
    assert "no such library" in reasons[1]


def test_a_driver_that_would_end_the_process_is_a_reason() -> None:
    def leave() -> NoReturn:
        raise SystemExit(3)

    assert "SystemExit(3)" in manager_of(leaving=leave).infos()[0].reason


def test_a_broken_device_does_not_take_a_name_from_a_good_one() -> None:
    manager = manager_of(same=explode, works=lambda: FakeDevice("same"))
    assert [i.usable for i in manager.infos()] == [False, True]
    assert [d.name for d in manager.choose(["same"])] == ["same"]
    assert [d.name for d in manager.choose(None)] == ["same"]


def test_two_devices_of_one_name_leave_the_first() -> None:
    manager = manager_of(
        a=lambda: FakeDevice("same", version="1"), b=lambda: FakeDevice("same", version="2")
    )
    assert [d.version for d in manager.choose(None)] == ["1"]


def test_a_device_for_tests_is_used_only_when_named() -> None:
    hidden = Capabilities(only_when_named=True)
    manager = manager_of(
        lab=lambda: FakeDevice("lab", capabilities=hidden), a=lambda: FakeDevice("a")
    )
    assert [d.name for d in manager.choose(None)] == ["a"]
    assert [d.name for d in manager.choose(["lab"])] == ["lab"]


def test_devices_may_be_named_described_or_given() -> None:
    manager = manager_of(a=lambda: FakeDevice("a"), b=lambda: FakeDevice("b"))
    info = next(i for i in manager.infos() if i.name == "b")
    chosen = manager.choose([FakeDevice("mine"), info, "a"])
    assert [d.name for d in chosen] == ["mine", "b", "a"]


def test_choices_that_are_no_devices_are_refused() -> None:
    manager = manager_of(a=lambda: FakeDevice("a"))
    with pytest.raises(PlacementError, match="found: a"):
        manager.choose(["nothing"])
    for wrong in ([], "a", ["a", "a"], [42]):
        with pytest.raises(InputError):
            manager.choose(wrong)  # type: ignore[arg-type]  # what a caller may still do


def test_a_class_in_the_place_of_a_device() -> None:
    manager = manager_of(a=lambda: FakeDevice)
    with pytest.raises(InputError, match=r"^FakeDevice is a class; a device .*: FakeDevice\(\)$"):
        manager.choose([FakeDevice])  # type: ignore[list-item]  # what a caller may still do
    (info,) = manager.infos()
    assert not info.usable
    assert info.reason == "its driver made the class FakeDevice; a device is an object of it"


def test_the_knob_names_the_default_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DEVICES", "b, a")
    manager = manager_of(a=lambda: FakeDevice("a"), b=lambda: FakeDevice("b"))
    assert [d.name for d in manager.choose(None)] == ["b", "a"]
    monkeypatch.setenv("PENSTOCK_DEVICES", "nope")
    words = r"^the knob devices \(PENSTOCK_DEVICES\) is 'nope': no device is named 'nope'; found: "
    with pytest.raises(PlacementError, match=words):
        manager.choose(None)
    monkeypatch.setenv("PENSTOCK_DEVICES", "a, a")
    with pytest.raises(InputError, match=r"PENSTOCK_DEVICES.*listed twice"):
        manager.choose(None)


def test_an_unknown_name_has_the_reason_of_the_driver_whose_it_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager = manager_of(a=explode, b=lambda: FakeDevice("b"))
    words = r"no device is named 'a-cpu'; found: a, b; 'a' cannot be used: .*no such library"
    with pytest.raises(PlacementError, match=words):
        manager.choose(["a-cpu"])
    monkeypatch.setattr(discovery, "manager", manager)
    with pytest.raises(UsageError, match=words):
        check_devices(["a-cpu"])
    check_devices(["a", "b"])
    with pytest.raises(PlacementError, match=r"device 'a' cannot be used\s+a: .*no such library"):
        check_devices(["b", "a"], usable=True)
    for name in ("ab-cpu", "b-cpu"):
        with pytest.raises(PlacementError, match=f"no device is named '{name}'; found: a, b$"):
            manager.choose([name])


class Drivers:
    """Drivers with the devices of these names, and which of them were loaded."""

    def __init__(self, **devices: list[str]) -> None:
        self.loaded: list[str] = []

        def making(driver: str, names: list[str]) -> Callable[[], list[FakeDevice]]:
            def make() -> list[FakeDevice]:
                self.loaded.append(driver)
                return [FakeDevice(name, version=driver) for name in names]

            return make

        self.manager = manager_of(**{d: making(d, names) for d, names in devices.items()})


def test_naming_a_device_loads_its_driver_alone() -> None:
    drivers = Drivers(reference=["reference"], lab=["lab"], npu=["npu-0", "npu-1"])
    assert drivers.manager.choose(["lab"])[0].name == "lab"
    assert drivers.loaded == ["lab"]
    assert drivers.manager.choose(["npu-1", "lab"])[0].name == "npu-1"
    assert drivers.loaded == ["lab", "npu"]
    by_name = drivers.manager.by_name("reference")
    assert drivers.loaded == ["lab", "npu", "reference"]
    assert len(drivers.manager.infos()) == 4
    assert drivers.loaded == ["lab", "npu", "reference"]
    assert drivers.manager.by_name("reference") is by_name


def test_a_device_that_no_driver_is_named_for_is_looked_for_in_all() -> None:
    drivers = Drivers(a=["x"], b=["y"], yy=["z"])
    assert drivers.manager.choose(["y"])[0].version == "b"
    assert sorted(drivers.loaded) == ["a", "b", "yy"]


def test_a_driver_that_does_not_bring_its_namesake_leaves_it_to_others() -> None:
    drivers = Drivers(same=["other"], z=["same"])
    assert drivers.manager.choose(["same"])[0].version == "z"


@pytest.mark.parametrize("first", [True, False])
def test_the_driver_of_a_devices_name_goes_before_others_whatever_was_loaded(first: bool) -> None:
    drivers = Drivers(a=["npu", "npu-gpu", "npux"], npu=["npu", "npu-gpu", "npux"])
    if first:
        drivers.manager.infos()
    chosen = drivers.manager.choose(["npu", "npu-gpu", "npux"])
    assert [d.version for d in chosen] == ["npu", "npu", "a"]
    told = [(i.driver, i.name) for i in drivers.manager.infos() if i.usable]
    assert told == [("a", "npux"), ("npu", "npu"), ("npu", "npu-gpu")]


def test_driver_with_the_nearer_name_goes_first() -> None:
    for full in (True, False):
        drivers = Drivers(npu=["npu-gpu-0"], **{"npu-gpu": ["npu-gpu-0"]})
        if full:
            drivers.manager.infos()
        assert drivers.manager.choose(["npu-gpu-0"])[0].version == "npu-gpu"


def in_a_child(work: Callable[[], str]) -> str:
    """What *work* answers in a forked child, or its error; a child that hangs is ended and fails
    here.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        try:
            answer = work()
        except BaseException as error:  # noqa: BLE001  # the parent asserts on it
            answer = repr(error)
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0
    return answer


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
class TestFork:
    def test_a_lock_held_at_the_fork_does_not_stop_the_child(self) -> None:
        manager = manager_of(a=lambda: FakeDevice("a"))
        with manager._lock:
            answer = in_a_child(lambda: ",".join(d.name for d in manager.choose(None)))
        assert answer == "a"
        assert [d.name for d in manager.choose(None)] == ["a"]

    def test_the_child_finds_devices_of_its_own(self) -> None:
        made: list[FakeDevice] = []

        def make() -> FakeDevice:
            made.append(FakeDevice("a"))
            return made[-1]

        manager = manager_of(a=make)
        first = manager.choose(None)
        answer = in_a_child(
            lambda: (
                f"{manager.choose(None)[0] is not first[0]} {manager.choose(None)[0] is made[1]}"
            )
        )
        assert answer == "True True"
        assert manager.choose(None) == first

    def test_a_child_compiles_while_its_parent_was_discovering(self) -> None:
        def compile_and_run() -> str:
            x = f32([[1, -2, 3], [4, 5, -6]])
            with penstock.compile(add_relu(), devices=["reference"]) as compiled:
                return str(compiled(x, x)[0].tolist())

        with discovery.manager._lock:
            answer = in_a_child(compile_and_run)
        assert answer == "[[2.0, 0.0, 6.0], [8.0, 10.0, 0.0]]"

    def test_a_manager_is_not_kept_for_it(self) -> None:
        manager = manager_of()
        alive = weakref.ref(manager)
        del manager
        gc.collect()
        assert alive() is None
        assert in_a_child(lambda: "fine") == "fine"
