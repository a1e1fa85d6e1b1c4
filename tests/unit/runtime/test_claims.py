"""Names that several distributions claim: whose the driver or device is, and what the others are
told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from penstock import knobs
from penstock.cache.ingredients import binding_of, derived_token, ingredients_of
from penstock.distribution import BY_THE_PROGRAM, DISTRIBUTION, current_origin, made_by, origin_of
from penstock.errors import InputError, PlacementError
from penstock.hal import Device, PrepareConfig
from penstock.runtime.discovery import Manager, manager
from penstock.runtime.entries import Source, source_of
from tests.unit.execution.fakes import add_relu
from tests.unit.runtime.test_discovery import FakeDevice


class Installed:
    """An entry point of a distribution, which counts how often it was loaded. It runs in this
    process.
    """

    def __init__(self, distribution: str, name: str, *devices: str) -> None:
        self.distribution, self.version, self.name = distribution, "1.0", name
        self.value = f"{distribution.replace('-', '_')}:make"
        self.devices = devices
        self.origins: list[str] = []

    def load(self) -> Callable[[], Any]:
        def make() -> list[Device]:
            self.origins.append(current_origin())
            return [FakeDevice(name, version=self.distribution) for name in self.devices]

        return make


def finds(*entries: Installed) -> Manager:
    return Manager(lambda: entries)


def brought(found: Manager, *names: str) -> list[str]:
    """The distributions of the devices of these names."""
    return [device.version for device in found.choose(names, isolate=False)]


def reason(found: Manager, name: str) -> str:
    with pytest.raises(PlacementError) as refused:
        found.choose([name], isolate=False)
    return str(refused.value)


OWN = Installed(DISTRIBUTION, "npu", "npu-0", "npu-1")
EVIL = Installed("evil", "npu-0", "npu-0", "evil-0")


@pytest.fixture(autouse=True)
def not_loaded() -> None:
    for entry in (OWN, EVIL, *TWO, *APART):
        entry.origins.clear()


def test_a_driver_of_penstock_s_name_is_never_loaded(caplog: pytest.LogCaptureFixture) -> None:
    evil = Installed("evil", "npu", "npu-0")
    with caplog.at_level(logging.WARNING):
        found = finds(evil, OWN)
        infos = found.infos(isolate=False)
    assert [(i.name, i.source.distribution, i.usable) for i in infos] == [
        ("npu", "evil", False),
        ("npu-0", DISTRIBUTION, True),
        ("npu-1", DISTRIBUTION, True),
    ]
    assert evil.origins == []
    told = (
        f"evil 1.0 (npu=evil:make) claims the name 'npu', which is Penstock's: {DISTRIBUTION} 1.0 "
        "(npu=penstock_nn:make) is used"
    )
    assert infos[0].reason == told
    assert f"driver npu is not loaded: {told}" in caplog.text


@pytest.mark.parametrize("everything_first", [True, False])
def test_a_device_of_penstock_s_name_is_penstock_s(
    everything_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever driver has the nearer name."""
    found = finds(EVIL, OWN)
    if everything_first:
        found.infos(isolate=False)
    assert brought(found, "npu-0", "npu-1", "evil-0") == [DISTRIBUTION, DISTRIBUTION, "evil"]
    (loser,) = [i for i in found.infos(isolate=False) if not i.usable]
    assert (loser.name, loser.driver) == ("npu-0", "npu-0")
    assert "evil 1.0" in loser.reason
    assert DISTRIBUTION in loser.reason
    assert "npu-0 is not used" in caplog.text or "device npu-0" in caplog.text


def test_penstock_s_own_is_looked_for_without_loading_others() -> None:
    found = finds(EVIL, OWN)
    assert brought(found, "npu-0") == [DISTRIBUTION]
    assert EVIL.origins == []


def test_another_distribution_cannot_take_the_name_of_an_unusable_driver_of_penstock() -> None:
    class Unusable(Installed):
        def load(self) -> Callable[[], Any]:
            return lambda: FakeDevice("npu-0", check=lambda: "no such card")

    found = finds(EVIL, Unusable(DISTRIBUTION, "npu"))
    assert "no such card" in reason(found, "npu-0")
    assert found.by_name("npu-0", isolate=False) is None


TWO = Installed("one", "npu", "npu-0"), Installed("two", "npu", "npu-0")
APART = Installed("one", "npu", "npu-0", "mine"), Installed("two", "other", "npu-0", "yours")


def test_two_foreign_drivers_of_one_name_are_not_loaded() -> None:
    found = finds(*TWO)
    told = reason(found, "npu")
    for said in ("one 1.0 (npu=one:make)", "two 1.0 (npu=two:make)", "npu=one or npu=two"):
        assert said in told
    assert "PENSTOCK_DRIVER_SOURCES" in told
    assert all(not entry.origins for entry in TWO)


@pytest.mark.parametrize("everything_first", [True, False])
def test_two_foreign_devices_of_one_name_are_not_used(everything_first: bool) -> None:
    found = finds(*APART)
    if everything_first:
        found.infos(isolate=False)
    told = reason(found, "npu-0")
    for said in ("one 1.0 (npu=one:make)", "two 1.0 (other=two:make)", "npu-0=one or npu-0=two"):
        assert said in told
    assert brought(found, "mine", "yours") == ["one", "two"]
    assert [d.name for d in found.choose(None, isolate=False)] == ["mine", "yours"]


@pytest.mark.parametrize("chosen", ["one", "two"])
@pytest.mark.parametrize(("entries", "name"), [(TWO, "npu"), (APART, "npu-0")])
def test_the_knob_says_whose_a_name_is(
    chosen: str, entries: tuple[Installed, ...], name: str
) -> None:
    with knobs.override(driver_sources=f"else=x, {name} = {chosen.upper()}"):
        assert brought(finds(*entries), "npu-0") == [chosen]
        found = finds(*entries)
        found.infos(isolate=False)
        assert brought(found, "npu-0") == [chosen]
        (loser,) = [i for i in found.infos(isolate=False) if not i.usable]
        assert f"has {name}={chosen}, and this one is " in loser.reason


def test_knob_reserves_a_name_for_a_missing_distribution() -> None:
    with knobs.override(driver_sources="npu-0=vendor"):
        found = finds(Installed("evil", "x", "npu-0"))
        assert "has npu-0=vendor, and this one is evil 1.0" in reason(found, "npu-0")


def test_the_knob_takes_nothing_from_penstock() -> None:
    with knobs.override(driver_sources="npu-0=evil,npu=evil"):
        assert brought(finds(EVIL, OWN), "npu-0") == [DISTRIBUTION]


@pytest.mark.parametrize("wrong", ["npu", "npu=", "=one", "npu=one,npu=two"])
def test_a_knob_that_says_nothing_sensible_is_refused(wrong: str) -> None:
    with knobs.override(driver_sources=wrong), pytest.raises(InputError, match="driver_sources"):
        finds(OWN).choose(["npu-0"])


def test_drivers_of_one_distribution_are_ordered_by_name() -> None:
    one, two = Installed("one", "a", "npu-0"), Installed("one", "npu", "npu-0")
    two.devices = ("npu-0",)
    found = finds(one, two)
    (loser,) = [i for i in found.infos(isolate=False) if not i.usable]
    assert (loser.driver, loser.reason) == ("a", "another driver has a device of this name")


def test_devices_of_penstock_are_named_for_their_drivers() -> None:
    """So that a device's name alone says which of them has it."""
    infos = [i for i in manager.infos() if i.source.distribution == DISTRIBUTION]
    assert {i.driver for i in infos} >= {"reference", "sample", "xnnpack"}
    for info in infos:
        own, rest = info.name[: len(info.driver)], info.name[len(info.driver) :]
        assert own == info.driver
        assert not rest[:1].isalnum()


def test_a_device_knows_what_brought_it() -> None:
    found = finds(OWN)
    (device,) = found.choose(["npu-0"], isolate=False)
    (info,) = [i for i in found.infos(isolate=False) if i.name == "npu-0"]
    assert info.source == Source(DISTRIBUTION, "1.0", "npu=penstock_nn:make")
    assert origin_of(device) == f"{DISTRIBUTION}:npu=penstock_nn:make"
    assert OWN.origins == [origin_of(device)]
    assert current_origin() == origin_of(FakeDevice("npu-0")) == BY_THE_PROGRAM


def test_origins_of_blocks_within_blocks() -> None:
    with made_by("a:b=c"):
        with made_by("d:e=f"):
            assert current_origin() == "d:e=f"
        assert current_origin() == "a:b=c"
    assert current_origin() == BY_THE_PROGRAM


class WithSlots:
    __slots__ = ("name",)

    def supported_operations(self) -> None: ...
    def prepare_model(self) -> None: ...


class Equal(FakeDevice):
    def __init__(self) -> None:
        super().__init__("equal")

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("kind", [WithSlots, Equal])
def test_any_object_may_be_a_device_of_an_origin(kind: type) -> None:
    class Odd(Installed):
        def load(self) -> Callable[[], Any]:
            return lambda: made

    made = kind()
    finds(Odd("vendor", "odd")).infos(isolate=False)
    assert origin_of(made) == "vendor:odd=vendor:make"
    assert origin_of(kind()) == BY_THE_PROGRAM


def test_keys_of_one_device_differ_by_what_brought_it() -> None:
    keys = []
    for entry in (Installed("one", "npu", "npu"), Installed("two", "npu", "npu")):
        (device,) = finds(entry).choose(["npu"], isolate=False)
        assert isinstance(device, FakeDevice)
        device.version = "1"
        keys.append(ingredients_of(add_relu(), device, PrepareConfig()))
    mine = FakeDevice("npu", version="1")
    keys.append(ingredients_of(add_relu(), mine, PrepareConfig()))
    assert [k["source"] for k in keys] == ["one:npu=one:make", "two:npu=two:make", BY_THE_PROGRAM]
    assert len({derived_token(k) for k in keys}) == len({binding_of(k) for k in keys}) == 3
    trusting = [
        ingredients_of(add_relu(), device, PrepareConfig(), trust_token=True) for device in (mine,)
    ]
    assert trusting[0]["source"] == BY_THE_PROGRAM


def test_distribution_of_an_importlib_entry_point_is_known() -> None:
    class Distribution:
        name, version = "Vendor_NPU", "2.1"

    class EntryPoint:
        name, value, dist = "npu", "vendor:make", Distribution()

        def load(self) -> Any: ...

    assert source_of(EntryPoint()) == Source("vendor-npu", "2.1", "npu=vendor:make")
    assert source_of(EntryPoint()).origin == "vendor-npu:npu=vendor:make"
