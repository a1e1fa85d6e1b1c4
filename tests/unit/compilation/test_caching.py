"""The three flows of caching, on a recording device (NNAPI sections 2.4 and 2.6, under upstream's names)."""

from __future__ import annotations

import copy
import gc
import itertools
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import penstock
from penstock.cache import Cache
from penstock.cache.directory import CacheDirectory
from penstock.cache.info import CacheInfo
from penstock.cache.ingredients import derived_token, ingredients_of
from penstock.compilation import CacheOutcome
from penstock.errors import (
    Cancelled,
    DeviceUnavailable,
    DriverError,
    GeneralFailure,
    InputError,
    InvalidArgument,
    MissedDeadline,
)
from penstock.hal import (
    NO_TOKEN,
    CacheReport,
    CancelToken,
    Capabilities,
    PrepareConfig,
    ProgressEvent,
)
from penstock.ir import DType, Model
from penstock.partitioning import Policy
from penstock.runtime.discovery import Manager
from penstock.testing.lab import LabDevice
from tests.support_caching import PAYLOAD, CachingDevice
from tests.support_devices import NumpyDevice, NumpyPrepared
from tests.unit.ir_core.samples import branching
from tests.unit.partitioning.models import Net, chain

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

ROOT = Path(__file__).resolve().parents[3]
SIZES = (0, 1, 32)
STATUSES = (None, GeneralFailure, DeviceUnavailable, InvalidArgument)
TOKEN = bytes(range(32))
X = np.ones((2, 3), np.float32)
MODEL = chain(("ADD", "RELU"))


def compiled(device: Any, cache: Any, model: Model = MODEL, **more: Any) -> penstock.CompiledModel:
    devices = list(device) if isinstance(device, list | tuple) else [device]
    return penstock.compile(model, devices=devices, cache=cache, **more)


def outcome(device: Any, cache: Any, model: Model = MODEL, **more: Any) -> tuple[str, str]:
    """The first step's cache outcome; the answer is checked on the way."""
    with compiled(device, cache, model, **more) as made:
        made.run([X] * len(made.inputs))
        step = made.receipt.steps[0]
        assert made.receipt.compiles == sum(s.cache.outcome != "hit" for s in made.receipt.steps)
        return step.cache.outcome, step.cache.reason


def info(tmp_path: Path, token: bytes = TOKEN) -> CacheInfo:
    return CacheInfo(tmp_path / "cache", token)


@pytest.mark.parametrize("needed", list(itertools.product(SIZES, SIZES)))
@pytest.mark.parametrize("status", STATUSES)
class TestCompilationCachingTest:
    def test_token_provided_and_cache_not_exist(
        self, tmp_path: Path, needed: tuple[int, int], status: type[DriverError] | None
    ) -> None:
        device = CachingDevice(needed=needed, status=status)
        outcome(device, info(tmp_path))
        supported = needed != (0, 0)
        assert device.methods == [f"prepare_model {'with' if supported else 'without'} caching"]
        assert (device.calls[0].token != NO_TOKEN) == supported
        assert device.calls[0].files == needed

    def test_token_provided_and_cache_exist(
        self, tmp_path: Path, needed: tuple[int, int], status: type[DriverError] | None
    ) -> None:
        device = CachingDevice(needed=needed, status=status)
        outcome(device, info(tmp_path))
        device.calls.clear()
        what, reason = outcome(device, info(tmp_path))
        if needed == (0, 0):
            assert device.methods == ["prepare_model without caching"]
            assert (what, reason) == ("off", "device caching does not cache")
        elif status is None:
            assert device.methods == ["prepare_model_from_cache"]
            assert what == "hit"
        else:
            assert device.methods == ["prepare_model_from_cache", "prepare_model with caching"]
            assert (what, reason) == ("miss", f"{status.__name__}: as told")
            assert device.calls[0].token == device.calls[1].token

    def test_token_not_provided(
        self, tmp_path: Path, needed: tuple[int, int], status: type[DriverError] | None
    ) -> None:
        device = CachingDevice(needed=needed, status=status)
        assert outcome(device, None) == ("off", "no cache was asked for")
        assert device.methods == ["prepare_model without caching"]
        assert device.calls[0].token == NO_TOKEN


class TestDeviceRegistrationTest:
    @pytest.mark.parametrize("status", [None, DeviceUnavailable("no")])
    @pytest.mark.parametrize("needed", list(itertools.product((*SIZES, 33), repeat=2)))
    def test_caching_failure(
        self, needed: tuple[int, int], status: Exception | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        device = CachingDevice(needed=needed)
        if status is not None:

            def fail() -> tuple[int, int]:
                raise status

            monkeypatch.setattr(device, "cache_files_needed", fail)
        registered = status is None and max(needed) <= 32
        if registered:
            compiled(device, None).close()
        else:
            with pytest.raises(penstock.errors.PlacementError, match="caching"):
                compiled(device, None)


def tokens(
    tmp_path: Path,
    *devices: CachingDevice,
    model: Model = MODEL,
    token: bytes | None = TOKEN,
    **more: Any,
) -> list[bytes]:
    """The tokens that the devices got, compiled into a directory of its own; the same ten times over."""
    seen = set()
    for again in range(10):
        for device in devices:
            device.calls.clear()
        compiled(devices, CacheInfo(tmp_path / f"c{again}", token), model, **more).close()
        seen.add(tuple(call.token for device in devices for call in device.calls))
    assert len(seen) == 1
    (found,) = seen
    return list(found)


def two(first: str = "one", second: str = "two", version: str = "1") -> tuple[CachingDevice, ...]:
    return (
        CachingDevice(first, kinds=frozenset({"ADD"}), version=version),
        CachingDevice(second, kinds=frozenset({"RELU"}), version=version),
    )


@pytest.mark.parametrize("token", [TOKEN, None], ids=["caller's token", "derived token"])
class TestPartitioningCache:
    """Upstream's CacheTest of the partitioner: simple plans have one step, compound ones several."""

    def test_cache_token_none_simple_body(self, token: bytes | None) -> None:
        device = CachingDevice()
        compiled(device, None).close()
        assert [c.token for c in device.calls] == [NO_TOKEN]

    def test_cache_token_none_compound_body(self, token: bytes | None) -> None:
        devices = two()
        compiled(devices, None).close()
        assert {c.token for d in devices for c in d.calls} == {NO_TOKEN}

    def test_cache_token_different_device_names_simple_body(
        self, tmp_path: Path, token: bytes | None
    ) -> None:
        one = tokens(tmp_path, CachingDevice("one"), token=token)
        other = tokens(tmp_path, CachingDevice("other"), token=token)
        assert one != other

    def test_cache_token_different_device_names_compound_body(
        self, tmp_path: Path, token: bytes | None
    ) -> None:
        found = tokens(tmp_path, *two(), token=token)
        other = tokens(tmp_path, *two("three", "four"), token=token)
        assert len({*found, *other}) == 4

    def test_cache_token_different_versions_simple_body(
        self, tmp_path: Path, token: bytes | None
    ) -> None:
        one = tokens(tmp_path, CachingDevice(version="1"), token=token)
        assert one != tokens(tmp_path, CachingDevice(version="2"), token=token)

    def test_cache_token_different_versions_compound_body(
        self, tmp_path: Path, token: bytes | None
    ) -> None:
        found = tokens(tmp_path, *two(), token=token)
        assert len({*found, *tokens(tmp_path, *two(version="2"), token=token)}) == 4

    @pytest.mark.parametrize("compound", [False, True])
    def test_cache_token_different_preferences(
        self, tmp_path: Path, token: bytes | None, compound: bool
    ) -> None:
        found: set[tuple[bytes, ...]] = set()
        for preference in penstock.hal.PREFERENCES:
            devices = two() if compound else (CachingDevice(),)
            found.add(tuple(tokens(tmp_path, *devices, token=token, preference=preference)))
        assert len({t for row in found for t in row}) == (6 if compound else 3)

    @pytest.mark.parametrize("compound", [False, True])
    def test_cache_token_different_priorities(
        self, tmp_path: Path, token: bytes | None, compound: bool
    ) -> None:
        found: set[bytes] = set()
        for priority in penstock.hal.PRIORITIES:
            devices = two() if compound else (CachingDevice(),)
            found.update(tokens(tmp_path, *devices, token=token, priority=priority))
        assert len(found) == (6 if compound else 3)

    @pytest.mark.parametrize("compound", [False, True])
    def test_cache_token_different_tokens(
        self, tmp_path: Path, token: bytes | None, compound: bool
    ) -> None:
        found: set[bytes] = set()
        for own in (TOKEN, bytes(32), TOKEN[::-1], b"\xff" * 32):
            devices = two() if compound else (CachingDevice(),)
            found.update(tokens(tmp_path, *devices, token=own))
        assert len(found) == (8 if compound else 4)

    def test_cache_token_different_partitions_compound_body(
        self, tmp_path: Path, token: bytes | None
    ) -> None:
        model = chain(("ADD", "RELU", "ADD"))
        found = tokens(tmp_path, *two(), model=model, token=token)
        assert len(set(found)) == 3
        whole = tokens(tmp_path, CachingDevice("one"), model=model, token=token)
        assert not {*whole} & {*found}

    def test_a_simple_and_a_compound_plan_differ(self, tmp_path: Path, token: bytes | None) -> None:
        one = tokens(tmp_path, CachingDevice("one"), model=chain(("ADD",)), token=token)
        assert not {*one} & {*tokens(tmp_path, *two(), token=token)}


class TestTheDerivedToken:
    def test_is_bound_to_content_and_not_to_paths(self, tmp_path: Path) -> None:
        self.replace_a_file(tmp_path)
        gc.collect()  # models that were loaded own descriptors

    def replace_a_file(self, tmp_path: Path) -> None:
        from penstock.export import tflite

        first, second = tmp_path / "a.tflite", tmp_path / "b.tflite"
        first.write_bytes(tflite.write(weighted(1.0)))
        shutil.copyfile(first, second)
        device = CachingDevice()
        assert outcome(device, tmp_path / "c", penstock.load(first))[0] == "miss"
        assert outcome(device, tmp_path / "c", penstock.load(second))[0] == "hit"
        status = first.stat()
        changed = tflite.write(weighted(2.0))
        assert len(changed) == status.st_size
        first.write_bytes(changed)
        os.utime(first, ns=(status.st_atime_ns, status.st_mtime_ns))
        what, reason = outcome(device, tmp_path / "c", penstock.load(first))
        assert what == "miss"
        assert reason.startswith("NoEntry: the nearest entry differs in constants (")

    @pytest.mark.parametrize(
        ("change", "ingredient"),
        [
            ({"preference": "low_power"}, "preference (fast_single_answer -> low_power)"),
            ({"priority": "high"}, "priority (medium -> high)"),
            ({"num_threads": 7}, "num_threads ("),
            ({"shapes": {"x": (4, 3)}}, "shapes (as declared -> 0:4x3)"),
            ({"policy": Policy(accuracy="relaxed")}, "accuracy (faithful -> relaxed)"),
        ],
    )
    def test_a_miss_names_the_ingredient(
        self, tmp_path: Path, change: dict[str, Any], ingredient: str
    ) -> None:
        device = CachingDevice()
        compiled(device, tmp_path / "c").close()
        with compiled(device, tmp_path / "c", **change) as made:
            found = made.receipt.steps[0].cache
        assert found.outcome == "miss"
        assert found.reason.startswith(f"NoEntry: the nearest entry differs in {ingredient}")

    @pytest.mark.parametrize(
        ("what", "value", "said"),
        [
            ("cpu_features", lambda: "x86_64 sse", "cpu_features ("),
            ("CACHE_SCHEMA", "next", "schema (1 -> next)"),
        ],
    )
    def test_the_machine_and_the_schema_are_ingredients(
        self, tmp_path: Path, what: str, value: Any, said: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        device = CachingDevice()
        outcome(device, tmp_path / "c")
        monkeypatch.setattr(f"penstock.cache.ingredients.{what}", value)
        now, reason = outcome(device, tmp_path / "c")
        assert now == "miss"
        assert reason.startswith(f"NoEntry: the nearest entry differs in {said}")

    def test_options_are_an_ingredient(self) -> None:
        tokens = {
            derived_token(ingredients_of(MODEL, CachingDevice(), PrepareConfig(options=options)))
            for options in ((), (("a", "1"),), (("a", "2"),), (("a", "1"), ("b", "2")))
        }
        assert len(tokens) == 4

    def test_another_version_is_named(self, tmp_path: Path) -> None:
        outcome(CachingDevice(version="1"), tmp_path / "c")
        _, reason = outcome(CachingDevice(version="2"), tmp_path / "c")
        assert reason == "NoEntry: the nearest entry differs in version (1 -> 2)"

    def test_of_a_long_version_what_differs_is_named(self, tmp_path: Path) -> None:
        rest = "(engine 3; plugin abc; x86_64 avx avx2 fma sse)"
        outcome(CachingDevice(version=f"1 {rest}"), tmp_path / "c")
        _, reason = outcome(CachingDevice(version=f"1 {rest} late"), tmp_path / "c")
        assert reason == "NoEntry: the nearest entry differs in version (+late)"

    def test_another_part_of_the_model_is_no_cause(self, tmp_path: Path) -> None:
        with compiled(two(), tmp_path / "c", chain(("ADD", "RELU", "ADD"))) as made:
            reasons = [s.cache.reason for s in made.receipt.steps]
        assert reasons[2] == "NoEntry: this part of the model is not cached"

    def test_another_model_is_not_near(self, tmp_path: Path) -> None:
        outcome(CachingDevice(), tmp_path / "c", chain(("ADD",)))
        _, reason = outcome(CachingDevice(), tmp_path / "c", chain(("RELU",)))
        assert reason == "NoEntry: nothing is cached for a model of this structure"

    def test_an_entry_that_lost_a_file_says_so(self, tmp_path: Path) -> None:
        device = CachingDevice()
        outcome(device, tmp_path / "c")
        next((tmp_path / "c").glob("*20")).unlink()
        assert outcome(device, tmp_path / "c") == (
            "miss",
            "NoEntry: the entry lacks data file 0",
        )

    def test_an_empty_cache_says_so(self, tmp_path: Path) -> None:
        assert outcome(CachingDevice(), tmp_path / "c")[1].startswith("NoEntry: ")


def weighted(value: float) -> Model:
    net = Net()
    x = net.source("x")
    weight = net.constant(np.full((2, 3), value, np.float32), "w")
    return net.build([net.add("y", x, weight)])


class TestACallersToken:
    def test_names_the_files_by_nnapis_recipe(self, tmp_path: Path) -> None:
        device = CachingDevice("d", needed=(2, 1))
        compiled(device, info(tmp_path)).close()
        token = device.calls[0].token
        letters = "".join(chr(65 + (b & 15)) + chr(65 + (b >> 4)) for b in token)
        names = {p.name for p in (tmp_path / "cache").iterdir()}
        assert {f"{letters}10", f"{letters}11", f"{letters}20"} <= names
        assert (tmp_path / "cache" / f"{letters}10").read_bytes() == PAYLOAD

    def test_the_recipe_itself(self, tmp_path: Path) -> None:
        import hashlib
        import struct

        device = CachingDevice("d", version="v")
        compiled(device, info(tmp_path)).close()
        simple = TOKEN + b"d" + b"v" + struct.pack("=ii", 1, 100)
        assert device.calls[0].token == hashlib.sha256(simple).digest()
        devices = two()
        compiled(devices, info(tmp_path), preference="low_power", priority="high").close()
        compound = TOKEN + struct.pack("=Ii", 0, 1) + b"two" + b"1" + struct.pack("=ii", 0, 110)
        assert devices[1].calls[0].token == hashlib.sha256(compound).digest()

    @pytest.mark.parametrize("length", [0, 31, 33, 64])
    def test_of_another_length_is_refused(self, tmp_path: Path, length: int) -> None:
        with pytest.raises(InputError, match=f"32 bytes, and {length} were given"):
            CacheInfo(tmp_path, bytes(length))

    def test_the_binding_tells_models_apart(self, tmp_path: Path) -> None:
        device = CachingDevice()
        compiled(device, info(tmp_path), weighted(1.0)).close()
        compiled(device, info(tmp_path), weighted(2.0)).close()
        first, *rest = device.calls
        assert {c.token for c in rest} == {first.token}
        assert all(c.binding != first.binding for c in rest)

    def test_a_trusted_token_leaves_the_model_out(self, tmp_path: Path) -> None:
        device = CachingDevice()
        trusting = CacheInfo(tmp_path / "cache", TOKEN, trust_token=True)
        for model in (weighted(1.0), weighted(2.0)):
            compiled(device, trusting, model).close()
        assert len({c.binding for c in device.calls}) == 1
        assert device.methods == ["prepare_model with caching", "prepare_model_from_cache"]

    @pytest.mark.parametrize("trusted", [False, True])
    def test_trust_is_an_ingredient(self, tmp_path: Path, trusted: bool) -> None:
        device = LabDevice()
        cache = tmp_path / "cache"
        compiled(device, CacheInfo(cache, TOKEN, trust_token=trusted)).close()
        what, reason = outcome(device, CacheInfo(cache, TOKEN, trust_token=not trusted))
        assert what == "miss"
        word = "without" if trusted else "with"
        assert reason == (
            f"IngredientChanged: the token's entry was sealed {word} the model in its key"
        )


class TestLateWriting:
    def test_what_is_not_written_yet_is_not_called_saved(self, tmp_path: Path) -> None:
        with compiled(LabDevice(mode="first_run"), tmp_path / "c") as made:
            found = made.receipt.steps[0].cache
            assert (found.saved, found.not_saved) == (
                False,
                "NotYetWritten: the driver writes it when it has compiled",
            )
            run = made.run([X]).receipt.steps[0].cache
            assert (run.outcome, run.saved, run.not_saved) == ("miss", True, "")
        assert outcome(LabDevice(mode="first_run"), tmp_path / "c") == ("hit", "optimised")

    def test_a_late_write_that_fails_stands_in_the_runs_receipt(self, tmp_path: Path) -> None:
        with compiled(LabDevice(mode="first_run"), tmp_path / "c") as made:
            for path in (tmp_path / "c").iterdir():
                path.unlink()
            run = made.run([X]).receipt.steps[0].cache
        assert not run.saved
        assert run.not_saved.startswith("NoEntry: ")


class TestDriversThatGetNothing:
    @pytest.mark.parametrize("level", [1, 2])
    def test_below_feature_level_3(self, tmp_path: Path, level: int) -> None:
        device = CachingDevice(level=level)
        what, reason = outcome(device, info(tmp_path))
        assert what == "off"
        assert f"feature level {level}" in reason
        assert device.methods == ["prepare_model without caching"]
        assert device.calls[0].token == NO_TOKEN
        assert not (tmp_path / "cache").exists()


class TestSaving:
    def test_a_driver_that_writes_nothing(self, tmp_path: Path) -> None:
        device = CachingDevice(saves=False)
        with compiled(device, tmp_path / "c") as made:
            found = made.receipt.steps[0].cache
        assert not found.saved
        assert found.not_saved == "device caching wrote nothing"
        assert not [p for p in (tmp_path / "c").iterdir() if p.name.endswith(("10", "20", ".tmp"))]

    def test_a_driver_that_says_why_not(self, tmp_path: Path) -> None:
        device = CachingDevice(report=CacheReport("failed", "Unreadable: no space left"))
        with compiled(device, tmp_path / "c") as made:
            found = made.receipt.steps[0].cache
        assert not found.saved
        assert found.not_saved == f"Unreadable: no space left (in {tmp_path / 'c'})"
        assert str(found).endswith(f"not saved: {found.not_saved}")
        assert outcome(device, tmp_path / "c")[0] == "miss"

    def test_a_compile_that_fails_leaves_nothing(self, tmp_path: Path) -> None:
        def fail(_: PrepareConfig) -> None:
            raise GeneralFailure("no room")

        alone = Policy(allow_fallback=False)
        with pytest.raises(GeneralFailure, match="no room"):
            compiled(CachingDevice(on_prepare=fail), tmp_path / "c", policy=alone)
        assert not [p for p in (tmp_path / "c").iterdir() if p.suffix in {".tmp", ".json"}]
        assert outcome(CachingDevice(), tmp_path / "c")[0] == "miss"

    def test_a_driver_that_closes_what_it_was_lent(self, tmp_path: Path) -> None:
        device = CachingDevice(saves=False, on_prepare=lambda c: os.close(c.model_cache[0].fd))
        with compiled(device, tmp_path / "c") as made:
            found = made.receipt.steps[0].cache
        assert found.not_saved.startswith("Unreadable: a cache file went while its driver had it")
        assert outcome(CachingDevice(), tmp_path / "c")[0] == "miss"

    def test_a_driver_whose_report_raises(self, tmp_path: Path) -> None:
        class Worse(CachingDevice):
            def prepare_model(self, model: Model, config: PrepareConfig) -> NumpyPrepared:
                super().prepare_model(model, config)

                class Prepared(NumpyPrepared):
                    def __getattribute__(self, name: str) -> Any:
                        if name == "cache_report":
                            raise RuntimeError("no report")
                        return super().__getattribute__(name)

                return Prepared(model)

        with compiled(Worse(), tmp_path / "c") as made:
            made.run([X])
            assert made.receipt.steps[0].cache.saved

    def test_an_interrupted_publication_closes_what_was_prepared(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        closed: list[NumpyPrepared] = []

        def interrupt(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        def close(prepared: NumpyPrepared) -> None:
            closed.append(prepared)

        monkeypatch.setattr(NumpyPrepared, "close", close)
        monkeypatch.setattr("penstock.cache.lease.Lease.publish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            compiled(CachingDevice(), tmp_path / "c")
        assert len(closed) == 1

    def test_a_directory_that_cannot_be(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        device = CachingDevice()
        with compiled(device, tmp_path / "file" / "c") as made:
            found = made.receipt.steps[0].cache
        assert (found.outcome, found.saved) == ("miss", False)
        assert found.not_saved.startswith("Unreadable: ")
        assert device.methods == ["prepare_model without caching"]

    def test_handles_are_read_write_and_regular(self, tmp_path: Path) -> None:
        import fcntl

        def look(config: PrepareConfig) -> None:
            assert config.lock is not None
            for handle in (*config.model_cache, *config.data_cache, config.lock):
                assert fcntl.fcntl(handle.fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
                assert os.fstat(handle.fd).st_mode & 0o777 == 0o600

        compiled(CachingDevice(on_prepare=look), tmp_path / "c").close()

    def test_the_log_has_a_line_at_start_and_end(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO, "penstock.runtime.session"):
            compiled(CachingDevice(), tmp_path / "c").close()
        first, last = [r.getMessage() for r in caplog.records if "session" in r.name]
        assert first == "compiling 2 operations in 1 steps"
        assert "1 driver compiles: caching, cache miss: NoEntry" in last


class TestGivenFiles:
    def files(self, tmp_path: Path, count: int) -> list[int]:
        return [os.open(tmp_path / f"f{i}", os.O_RDWR | os.O_CREAT, 0o600) for i in range(count)]

    def test_are_written_then_hit(self, tmp_path: Path) -> None:
        device = CachingDevice(report=CacheReport("saved"))
        fds = self.files(tmp_path, 2)
        try:
            given = CacheInfo.from_fds(fds[:1], fds[1:], token=TOKEN)
            device.status = GeneralFailure
            for fd in fds:
                os.write(fd, PAYLOAD)
            assert outcome(device, given) == ("miss", "GeneralFailure: as told")
            device.status = None
            assert outcome(device, given)[0] == "hit"
        finally:
            for fd in fds:
                os.close(fd)

    def test_read_only_ones_serve_a_load_and_no_save(self, tmp_path: Path) -> None:
        model = chain(("ADD", "RELU"))

        def found(mode: int) -> CacheOutcome:
            fds = [os.open(tmp_path / f"f{i}", mode | os.O_CREAT, 0o600) for i in range(2)]
            try:
                given = CacheInfo.from_fds(fds[:1], fds[1:], token=TOKEN)
                with penstock.compile(model, devices=["sample"], cache=given) as made:
                    made.run([X] * len(made.inputs))
                    return made.receipt.steps[0].cache
            finally:
                for fd in fds:
                    os.close(fd)

        first = found(os.O_RDONLY)
        assert (first.outcome, first.saved) == ("miss", False)
        assert first.not_saved.startswith("Unreadable: model file 0 cannot be written: ")
        written = found(os.O_RDWR)
        assert (written.outcome, written.saved) == ("miss", True)
        assert found(os.O_RDONLY).outcome == "hit"

    def test_a_descriptor_that_is_not_open(self) -> None:
        with pytest.raises(InputError, match="not open"):
            CacheInfo.from_fds([10**6], token=TOKEN)

    def test_later_shapes_do_not_touch_them(self, tmp_path: Path) -> None:
        net = Net()
        model = net.build([net.add("y", x := net.input(DType.FLOAT32, (None, 3), "x"), x)])
        device = CachingDevice()
        fds = self.files(tmp_path, 2)
        given = CacheInfo.from_fds(fds[:1], fds[1:], token=TOKEN)
        for fd in fds:
            os.write(fd, PAYLOAD)
        device.status = GeneralFailure
        with compiled(device, given, model) as made:
            for fd in fds:
                os.close(fd)
            device.calls.clear()
            made.run([np.ones((4, 3), np.float32)])
        assert device.methods == ["prepare_model without caching"]

    def test_no_compile_outlives_the_call(self, tmp_path: Path) -> None:
        device = CachingDevice(status=GeneralFailure)
        fds = self.files(tmp_path, 2)
        try:
            for fd in fds:
                os.write(fd, PAYLOAD)
            given = CacheInfo.from_fds(fds[:1], fds[1:], token=TOKEN)
            with compiled(device, given, policy=Policy(while_compiling="reference")) as made:
                assert made.receipt.steps[0].device == "caching"
        finally:
            for fd in fds:
                os.close(fd)

    def test_two_of_one_file(self, tmp_path: Path) -> None:
        (fd,) = self.files(tmp_path, 1)
        try:
            with pytest.raises(InputError, match="of one file"):
                CacheInfo.from_fds([fd], [fd], token=TOKEN)
        finally:
            os.close(fd)

    @pytest.mark.parametrize("given", [None, 3, "34", b"34", [None], ["3"], list(range(33))])
    def test_what_is_no_list_of_descriptors(self, given: Any) -> None:
        with pytest.raises(InputError, match="cache file"):
            CacheInfo.from_fds(given, token=TOKEN)

    def test_no_token(self) -> None:
        with pytest.raises(InputError, match="need a token"):
            CacheInfo.from_fds(token=cast("bytes", None))

    def test_several_steps_get_none(self, tmp_path: Path) -> None:
        fds = self.files(tmp_path, 2)
        try:
            given = CacheInfo.from_fds(fds[:1], fds[1:], token=TOKEN)
            what, reason = outcome(list(two()), given)
        finally:
            for fd in fds:
                os.close(fd)
        assert what == "off"
        assert "one step" in reason


@contextmanager
def another_compiling(cache: Path, model: Model = MODEL) -> Iterator[threading.Event]:
    """Another thread holds the lease of *model*'s entry until the event is set, or the block ends."""
    begun, go_on = threading.Event(), threading.Event()

    def hold(_: PrepareConfig) -> None:
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
        cancel, seen = CancelToken(), list[ProgressEvent]()
        with another_compiling(tmp_path / "c"):
            threading.Timer(0.05, cancel.set).start()
            with pytest.raises(Cancelled):
                compiled(CachingDevice(), tmp_path / "c", cancel=cancel, progress=seen.append)
        assert [e.stage for e in seen] == ["compile", "lease"]

    def test_a_wait_ends_with_the_deadline(self, tmp_path: Path) -> None:
        with another_compiling(tmp_path / "c") as go_on:
            watchdog = threading.Timer(60, go_on.set)
            watchdog.start()
            try:
                with pytest.raises(MissedDeadline):
                    compiled(CachingDevice(), tmp_path / "c", timeout=0.2)
                assert not go_on.is_set()
            finally:
                watchdog.cancel()

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
    """`Policy(while_compiling="reference")`: serve from the reference device, switch when compiled."""

    policy = Policy(while_compiling="reference")

    def test_runs_at_once_and_switches(self, tmp_path: Path) -> None:
        begun, go_on = threading.Event(), threading.Event()

        def hold(_: PrepareConfig) -> None:
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
            pending = made._base.compilation.steps[0].pending
            assert pending is not None
            assert pending.wait(30)
            after = made.run([X])
            assert after.receipt.steps[0].device == "caching"
            np.testing.assert_array_equal(before[0], after[0])
        with compiled(device, tmp_path / "c", policy=self.policy) as made:
            assert made.receipt.steps[0].cache.outcome == "hit"
            assert made.receipt.compiles == 0

    def test_close_cancels_what_is_under_way(self, tmp_path: Path) -> None:
        seen = threading.Event()

        def wait_for_the_end(config: PrepareConfig) -> None:
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
made = penstock.compile(chain(("ADD",)), devices=[device], cache={str(tmp_path / "c")!r}, policy=policy)
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
while not made._base.compilation.steps[0].pending._thread.is_alive():
    pass
"""
        with another_compiling(tmp_path / "c", chain(("ADD",))):
            subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

    def test_a_failure_leaves_the_reference_device(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(_: PrepareConfig) -> None:
            raise GeneralFailure("no room")

        with compiled(CachingDevice(on_prepare=fail), None, policy=self.policy) as made:
            pending = made._base.compilation.steps[0].pending
            assert pending is not None
            assert pending.wait(30)
            assert made.run([X]).receipt.steps[0].device == "reference"
        assert "a compile in the background failed: GeneralFailure: no room" in caplog.text


class TestTheCallersProgress:
    class Mine(Exception):
        pass

    def test_its_error_is_the_callers_wherever_it_was_called(self, tmp_path: Path) -> None:
        def complain(event: ProgressEvent) -> None:
            if event.stage == "inside":
                raise self.Mine

        def tell(config: PrepareConfig) -> None:
            assert config.progress is not None
            config.progress(ProgressEvent("inside", "caching", 0, 1))

        device = CachingDevice(on_prepare=tell)
        for devices in ([device], [device, NumpyDevice("reference")]):
            with pytest.raises(self.Mine):
                compiled(devices, tmp_path / "c", progress=complain)
        assert outcome(CachingDevice(), tmp_path / "c")[0] == "miss"


class TestLeastRecentlyUsed:
    def test_a_hit_is_a_use(self, tmp_path: Path) -> None:
        device = CachingDevice()
        old, young = chain(("ADD",)), chain(("RELU",))
        for model in (old, young):
            outcome(device, tmp_path / "c", model)
        for path in (tmp_path / "c").glob("*.json"):
            os.utime(path, (path.stat().st_mtime - 1000,) * 2)
        assert outcome(device, tmp_path / "c", old)[0] == "hit"
        size = sum(p.stat().st_size for p in (tmp_path / "c").iterdir())
        Cache(tmp_path / "c").gc(size * 3 // 4)
        assert len(CacheDirectory(tmp_path / "c").records()) == 1
        assert outcome(device, tmp_path / "c", old)[0] == "hit"


class TestArguments:
    @pytest.mark.parametrize("cache", [3, 1.5, b"x", "", "a\0b"])
    def test_what_is_no_cache(self, cache: Any) -> None:
        with pytest.raises(InputError, match="must be"):
            compiled(NumpyDevice("reference"), cache)

    def test_a_directory_as_text(self, tmp_path: Path) -> None:
        device = CachingDevice()
        assert outcome(device, str(tmp_path / "c"))[0] == "miss"
        assert outcome(device, tmp_path / "c")[0] == "hit"

    def test_the_users_own(self, tmp_path: Path) -> None:
        device = CachingDevice()
        with penstock.knobs.override(cache_dir=str(tmp_path / "own")):
            assert outcome(device, True)[0] == "miss"
            assert outcome(device, True)[0] == "hit"
        assert (tmp_path / "own").is_dir()

    def test_a_setting_that_makes_no_sense_is_told_at_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        outcome(CachingDevice(), tmp_path / "c")
        for name, value in (
            ("CACHE_LIMIT_MIB", "abc"),
            ("CACHE_LIMIT_MIB", "-5"),
            ("LEASE_SECONDS", "nan"),
            ("LATE_WRITE_SECONDS", "-1"),
            ("KEY_STORE", "foo"),
        ):
            with monkeypatch.context() as patch:
                patch.setenv(f"PENSTOCK_{name}", value)
                with pytest.raises(InputError, match=f"knob {name.lower()}"):
                    outcome(CachingDevice(), tmp_path / "c")

    def test_a_trusted_token_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="needs a token"):
            CacheInfo(tmp_path, trust_token=True)

    def test_copies(self, tmp_path: Path) -> None:
        kept = CacheInfo(tmp_path, TOKEN, trust_token=True)
        assert copy.copy(kept) == kept


class TestCacheablePaths:
    """What is cached, and what never is (NNAPI section 2.8)."""

    def hits(self, devices: Any, cache: Path, model: Model = MODEL, **more: Any) -> list[str]:
        compiled(devices, cache, model, **more).close()
        with compiled(devices, cache, model, **more) as made:
            return [f"{s.device} {s.cache.outcome}" for s in made.receipt.steps]

    def test_one_device_named(self, tmp_path: Path) -> None:
        assert self.hits(CachingDevice("one"), tmp_path / "c") == ["one hit"]

    def test_several_devices_named_one_entry_a_step(self, tmp_path: Path) -> None:
        model = chain(("ADD", "RELU", "ADD"))
        assert self.hits(list(two()), tmp_path / "c", model) == ["one hit", "two hit", "one hit"]
        assert len(CacheDirectory(tmp_path / "c").records()) == 3

    def test_every_device_there_is(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        device = CachingDevice("one", kinds=frozenset({"ADD"}))

        class Entry:
            name = "one"

            def load(self) -> Any:
                return lambda: [device, NumpyDevice("reference")]

        found: Any = [Entry()]
        monkeypatch.setattr("penstock.runtime.session.manager", Manager(lambda: found))
        for outcome_now in ("miss", "hit"):
            with penstock.compile(MODEL, cache=tmp_path / "c") as made:
                steps = [(s.device, s.cache.outcome) for s in made.receipt.steps]
            assert steps == [("one", outcome_now), ("reference", "off")]

    def test_control_flow(self, tmp_path: Path) -> None:
        device = CachingDevice("one", kinds=frozenset({"ADD", "RELU", "IF"}))
        assert self.hits(device, tmp_path / "c", branching()) == ["one hit"]

    def test_further_shapes_are_entries_of_their_own(self, tmp_path: Path) -> None:
        net = Net()
        model = net.build([net.add("y", x := net.input(DType.FLOAT32, (None, 3), "x"), x)])
        device = CachingDevice("one")
        for compiles in (1, 0):
            with compiled(device, tmp_path / "c", model) as made:
                receipts = [made.run([np.ones((n, 3), np.float32)]).receipt for n in (4, 4)]
            assert [r.compiles for r in receipts] == [compiles, 0]

    def test_a_fall_back_never(self, tmp_path: Path) -> None:
        def fail(_: PrepareConfig) -> None:
            raise GeneralFailure("no room")

        spare = CachingDevice("reference")
        spare.capabilities = Capabilities()
        devices = [CachingDevice("one", on_prepare=fail), spare]
        with compiled(devices, tmp_path / "c") as made:
            (step,) = made.receipt.steps
        assert (step.device, step.fallback_from) == ("reference", "one")
        assert str(step.cache) == "off: a fall-back is not cached"
        assert spare.methods == ["prepare_model without caching"]

    def test_two_directories_with_one_model_both_hit(self, tmp_path: Path) -> None:
        device = CachingDevice("one")
        for name in ("a", "b"):
            assert self.hits(device, tmp_path / name) == ["one hit"]
        for name in ("a", "b"):
            assert outcome(device, tmp_path / name)[0] == "hit"


def test_a_driver_without_handles_is_given_no_token(tmp_path: Path) -> None:
    """The directory cannot be made: it compiles, and nothing tells it of a cache."""
    (tmp_path / "cache").write_bytes(b"in the way")
    device = CachingDevice()
    what, _ = outcome(device, info(tmp_path))
    assert what == "miss"
    (call,) = device.calls
    assert call.files == (0, 0)
    assert (call.token, call.binding) == (NO_TOKEN, NO_TOKEN)
