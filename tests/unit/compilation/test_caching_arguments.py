"""The argument `cache`, and which ways of compiling use it."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import errors, hal
from penstock.cache import Cache
from penstock.cache.directory import CacheDirectory
from penstock.cache.info import CacheInfo
from penstock.ir import DType, Model
from penstock.runtime.discovery import Manager
from tests.support_caching import CachingDevice
from tests.support_devices import NumpyDevice
from tests.unit.compilation.caching import MODEL, TOKEN, compiled, info, outcome, two
from tests.unit.ir_core.samples import branching
from tests.unit.partitioning.models import Net, chain

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")


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
    def test_cache_of_a_wrong_type_is_refused(self, cache: Any) -> None:
        with pytest.raises(errors.InputError, match="must be"):
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

    def test_invalid_cache_setting_is_refused_at_once(
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
                with pytest.raises(errors.InputError, match=f"knob {name.lower()}"):
                    outcome(CachingDevice(), tmp_path / "c")

    def test_trust_token_needs_a_token(self, tmp_path: Path) -> None:
        with pytest.raises(errors.InputError, match="needs a token"):
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
        def fail(_: hal.PrepareConfig) -> None:
            raise errors.GeneralFailure("no room")

        spare = CachingDevice("reference")
        spare.capabilities = hal.Capabilities()
        devices = [CachingDevice("one", on_prepare=fail), spare]
        with compiled(devices, tmp_path / "c") as made:
            (step,) = made.receipt.steps
        assert (step.device, step.fallback_from) == ("reference", "one")
        assert str(step.cache) == "off: a fallback is not cached"
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
    assert (call.token, call.binding) == (hal.NO_TOKEN, hal.NO_TOKEN)
