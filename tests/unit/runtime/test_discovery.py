from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from penstock.errors import InputError, PlacementError
from penstock.hal import Capabilities, DeviceBase, PrepareConfig, PreparedModel, Support
from penstock.ir import Model
from penstock.runtime.discovery import Manager


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


class FakeEntry:
    """Stands in for `importlib.metadata.EntryPoint`, whose target need not be importable here."""

    def __init__(self, name: str, make: Any) -> None:
        self.name, self._make = name, make

    def load(self) -> Any:
        return self._make


def manager_of(**drivers: Any) -> Manager:
    entries: Any = tuple(FakeEntry(name, make) for name, make in drivers.items())
    found: tuple[EntryPoint, ...] = entries
    return Manager(lambda: found)


def explode() -> Any:
    raise RuntimeError("no such library")


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
    with pytest.raises(PlacementError, match="cannot be used"):
        manager.choose(["x"])


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


def test_the_knob_names_the_default_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DEVICES", "b, a")
    manager = manager_of(a=lambda: FakeDevice("a"), b=lambda: FakeDevice("b"))
    assert [d.name for d in manager.choose(None)] == ["b", "a"]
