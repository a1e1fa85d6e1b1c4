"""NNAPI's compilation caching over real directories, on the lab device (NNAPI sections 2.1 to
2.4).
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.compilation.step_receipt import CacheOutcome
from penstock.drivers.reference import ReferenceDevice
from penstock.errors import PenstockError
from penstock.nnapi import Compilation, Model, Preference, Priority
from penstock.testing.lab import LabDevice
from tests.unit.nnapi.building import FLOAT, fuse, weighted

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

TOKEN = bytes(range(32))
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 8)


@contextmanager
def compiled(
    model: Model, device: LabDevice, directory: Any = None, token: bytes = TOKEN, **settings: Any
) -> Iterator[Compilation]:
    """*model*, compiled on *device* with *directory* as its cache."""
    with Compilation.create_for_devices(model, [device]) as compilation:
        if directory is not None:
            compilation.set_caching(directory, token, settings.get("trust_token", False))
        compilation.set_preference(settings.get("preference", Preference.FAST_SINGLE_ANSWER))
        compilation.set_priority(settings.get("priority", Priority.MEDIUM))
        compilation.finish()
        yield compilation


def sums() -> Model:
    """w = (x + y) + x: two operations, as `weighted` has, of two inputs."""
    model = Model()
    x, y, z, w = (model.add_operand(FLOAT, (2, 3)) for _ in range(4))
    model.add_operation("ADD", [x, y, fuse(model)], [z])
    model.add_operation("ADD", [z, x, fuse(model)], [w])
    model.identify_inputs_and_outputs([x, y], [w])
    model.finish()
    return model


def outcome(compilation: Compilation) -> CacheOutcome:
    (step,) = compilation.receipt.steps
    return step.cache


def answer(compilation: Compilation) -> list[float]:
    result: list[float] = compilation.compiled.run([X])[0].ravel().tolist()
    return result


def expected(model: Model) -> list[float]:
    """What the reference device answers."""
    with Compilation.create_for_devices(model, [ReferenceDevice()]) as compilation:
        compilation.finish()
        return answer(compilation)


def close_to(model: Model) -> Any:
    return pytest.approx(expected(model), rel=1e-5, abs=1e-6)


def test_without_caching_nothing_is_kept() -> None:
    device = LabDevice()
    for _ in range(2):
        with compiled(weighted(), device) as compilation:
            assert outcome(compilation).outcome == "off"
    assert (device.compiles, device.saves, device.loads) == (2, 0, 0)


def test_the_second_compilation_hits(tmp_path: Path) -> None:
    model = weighted()
    with compiled(model, LabDevice(), tmp_path) as first:
        assert outcome(first).outcome == "miss"
        assert answer(first) == close_to(model)
    device = LabDevice()
    with compiled(weighted(), device, tmp_path) as second:
        assert outcome(second).outcome == "hit"
        assert second.receipt.compiles == 0
        assert answer(second) == close_to(model)
    assert (device.compiles, device.loads) == (0, 1)


@pytest.mark.parametrize("directory", [str, os.fsencode, lambda path: f"{path}/", Path])
def test_a_directory_of_any_form(tmp_path: Path, directory: Any) -> None:
    for compiles in (1, 0):
        device = LabDevice()
        with compiled(weighted(), device, directory(tmp_path)):
            assert device.compiles == compiles


def test_the_token_is_copied(tmp_path: Path) -> None:
    token = bytearray(TOKEN)
    device = LabDevice()
    with Compilation.create_for_devices(weighted(), [device]) as compilation:
        compilation.set_caching(tmp_path, token)  # type: ignore[arg-type]
        token[:] = bytes(32)
        compilation.finish()
    with compiled(weighted(), device, tmp_path, TOKEN) as again:
        assert outcome(again).outcome == "hit"


@pytest.mark.parametrize(
    "settings",
    [
        {"token": TOKEN[::-1]},
        {"preference": Preference.LOW_POWER},
        {"preference": Preference.SUSTAINED_SPEED},
        {"priority": Priority.LOW},
        {"priority": Priority.HIGH},
    ],
    ids=str,
)
def test_settings_are_part_of_the_cache_key(tmp_path: Path, settings: dict[str, Any]) -> None:
    for found in ("miss", "hit"):
        for given in ({}, settings):
            with compiled(weighted(), LabDevice(), tmp_path, **given) as compilation:
                assert outcome(compilation).outcome == found


@pytest.mark.parametrize(
    "device", [LabDevice("lab2"), LabDevice(version="2")], ids=["name", "version"]
)
def test_device_is_part_of_the_cache_key(tmp_path: Path, device: LabDevice) -> None:
    with compiled(weighted(), LabDevice(), tmp_path):
        pass
    with compiled(weighted(), device, tmp_path) as compilation:
        assert outcome(compilation).outcome == "miss"


def test_a_token_given_to_two_models_is_a_miss(tmp_path: Path) -> None:
    with compiled(weighted(1), LabDevice(), tmp_path):
        pass
    other = weighted(2)
    with compiled(other, LabDevice(), tmp_path) as compilation:
        assert outcome(compilation).outcome == "miss"
        assert outcome(compilation).reason.startswith("TokenCollision: ")
        assert answer(compilation) == close_to(other)


class TestTrustedTokens:
    def test_trusted_token_hits_like_others(self, tmp_path: Path) -> None:
        device = LabDevice()
        for _ in range(2):
            with compiled(weighted(), device, tmp_path, trust_token=True) as compilation:
                assert answer(compilation) == close_to(weighted())
        assert (device.compiles, device.loads) == (1, 1)

    def test_trusted_token_of_two_models_answers_with_the_first(self, tmp_path: Path) -> None:
        """What the caller took upon himself: wrong values, and no crash."""
        with compiled(weighted(1), LabDevice(), tmp_path, trust_token=True):
            pass
        with compiled(weighted(2), LabDevice(), tmp_path, trust_token=True) as compilation:
            assert outcome(compilation).outcome == "hit"
            assert answer(compilation) == close_to(weighted(1))

    @pytest.mark.parametrize(
        "make", [lambda: weighted(2, units=24), sums], ids=["24 units", "sums"]
    )
    def test_trusted_token_of_other_forms_fails_and_never_crashes(
        self, tmp_path: Path, make: Callable[[], Model]
    ) -> None:
        with compiled(weighted(1), LabDevice(), tmp_path, trust_token=True):
            pass
        other = make()
        with compiled(other, LabDevice(), tmp_path, trust_token=True) as compilation:
            assert outcome(compilation).outcome == "hit"
            inputs = [np.ones((2, 3) if make is sums else (1, 8), np.float32)] * len(
                other.lowered.inputs
            )
            with pytest.raises(PenstockError):
                compilation.compiled.run(inputs)
        gc.collect()  # what the error's traceback still holds

    def test_trusted_and_untrusted_token_have_two_entries(self, tmp_path: Path) -> None:
        with compiled(weighted(), LabDevice(), tmp_path, trust_token=True):
            pass
        with compiled(weighted(), LabDevice(), tmp_path) as compilation:
            assert outcome(compilation).outcome == "miss"
            assert answer(compilation) == close_to(weighted())


class TestBadDirectories:
    """They mean no caching, and nothing else."""

    @pytest.mark.parametrize(
        "name", ["", "a\0b", "~nobody-of-this-name/cache", "file", "file/below"]
    )
    def test_unusable_directory_caches_nothing(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "file").write_bytes(b"")
        directory = str(tmp_path / name) if name.startswith("file") else name
        device = LabDevice()
        for _ in range(2):
            with compiled(weighted(), device, directory) as compilation:
                assert outcome(compilation).outcome in {"off", "miss"}
                assert answer(compilation) == close_to(weighted())
        assert device.compiles == 2

    def test_unusable_directory_replaces_a_usable_one(self, tmp_path: Path) -> None:
        with Compilation.create_for_devices(weighted(), [LabDevice()]) as compilation:
            compilation.set_caching(tmp_path, TOKEN)
            compilation.set_caching("", TOKEN)
            compilation.finish()
            assert outcome(compilation).outcome == "off"
        assert list(tmp_path.iterdir()) == []


class TestDescriptors:
    @staticmethod
    def compile(
        directory: Path, device: LabDevice, models: int = 2, datas: int = 1
    ) -> CacheOutcome:
        with ExitStack() as stack:
            files = []
            for name in [*(f"m{i}" for i in range(models)), *(f"d{i}" for i in range(datas))]:
                fd = os.open(directory / name, os.O_RDWR | os.O_CREAT, 0o600)
                stack.callback(os.close, fd)
                files.append(fd)
            compilation = stack.enter_context(Compilation.create_for_devices(weighted(), [device]))
            compilation.set_caching_from_fds(files[:models], files[models:], TOKEN)
            compilation.finish()
            assert answer(compilation) == close_to(weighted())
            return outcome(compilation)

    def test_the_second_compilation_hits(self, tmp_path: Path) -> None:
        device = LabDevice()
        assert self.compile(tmp_path, device).outcome == "miss"
        assert self.compile(tmp_path, device).outcome == "hit"
        assert (device.compiles, device.loads) == (1, 1)

    def test_the_caller_may_close_his_before_it_is_finished(self, tmp_path: Path) -> None:
        device = LabDevice()
        for _ in range(2):
            with Compilation.create_for_devices(weighted(), [device]) as compilation:
                files = [os.open(tmp_path / n, os.O_RDWR | os.O_CREAT, 0o600) for n in "abc"]
                compilation.set_caching_from_fds(files[:2], files[2:], TOKEN)
                for fd in files:
                    os.close(fd)
                compilation.finish()
        assert (device.compiles, device.loads) == (1, 1)

    @pytest.mark.parametrize(("models", "datas"), [(1, 1), (3, 1), (2, 0), (2, 2), (0, 0)])
    def test_another_number_than_the_device_needs(
        self, tmp_path: Path, models: int, datas: int
    ) -> None:
        device = LabDevice()
        for _ in range(2):
            assert self.compile(tmp_path, device, models, datas).outcome != "hit"
        assert device.compiles == 2
