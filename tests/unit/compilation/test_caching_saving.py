"""What drivers write, when, and where: late, not at all, into files of the caller."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import penstock
from penstock import errors, hal
from penstock.cache.info import CacheInfo
from penstock.compilation import CacheOutcome
from penstock.ir import DType, Model
from penstock.partitioning import Policy
from penstock.testing.lab import LabDevice
from tests.support_caching import PAYLOAD, CachingDevice
from tests.support_devices import NumpyPrepared
from tests.unit.compilation.caching import TOKEN, X, compiled, info, outcome, two
from tests.unit.partitioning.models import Net, chain

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")


class TestLateWriting:
    def test_pending_entry_is_not_reported_as_saved(self, tmp_path: Path) -> None:
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
        assert device.calls[0].token == hal.NO_TOKEN
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
        device = CachingDevice(report=hal.CacheReport("failed", "Unreadable: no space left"))
        with compiled(device, tmp_path / "c") as made:
            found = made.receipt.steps[0].cache
        assert not found.saved
        assert found.not_saved == f"Unreadable: no space left (in {tmp_path / 'c'})"
        assert str(found).endswith(f"not saved: {found.not_saved}")
        assert outcome(device, tmp_path / "c")[0] == "miss"

    def test_a_compile_that_fails_leaves_nothing(self, tmp_path: Path) -> None:
        def fail(_: hal.PrepareConfig) -> None:
            raise errors.GeneralFailure("no room")

        alone = Policy(allow_fallback=False)
        with pytest.raises(errors.GeneralFailure, match="no room"):
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
            def prepare_model(self, model: Model, config: hal.PrepareConfig) -> NumpyPrepared:
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

        def look(config: hal.PrepareConfig) -> None:
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
        assert first == "compiling 2 operations in 1 step"
        assert "1 driver compiles: caching, cache miss: NoEntry" in last


class TestGivenFiles:
    def files(self, tmp_path: Path, count: int) -> list[int]:
        return [os.open(tmp_path / f"f{i}", os.O_RDWR | os.O_CREAT, 0o600) for i in range(count)]

    def test_are_written_then_hit(self, tmp_path: Path) -> None:
        device = CachingDevice(report=hal.CacheReport("saved"))
        fds = self.files(tmp_path, 2)
        try:
            given = CacheInfo.from_fds(fds[:1], fds[1:], token=TOKEN)
            device.status = errors.GeneralFailure
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
        with pytest.raises(errors.InputError, match="not open"):
            CacheInfo.from_fds([10**6], token=TOKEN)

    def test_later_shapes_leave_given_files_alone(self, tmp_path: Path) -> None:
        net = Net()
        model = net.build([net.add("y", x := net.input(DType.FLOAT32, (None, 3), "x"), x)])
        device = CachingDevice()
        fds = self.files(tmp_path, 2)
        given = CacheInfo.from_fds(fds[:1], fds[1:], token=TOKEN)
        for fd in fds:
            os.write(fd, PAYLOAD)
        device.status = errors.GeneralFailure
        with compiled(device, given, model) as made:
            for fd in fds:
                os.close(fd)
            device.calls.clear()
            made.run([np.ones((4, 3), np.float32)])
        assert device.methods == ["prepare_model without caching"]

    def test_no_compile_outlives_the_call(self, tmp_path: Path) -> None:
        device = CachingDevice(status=errors.GeneralFailure)
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
            with pytest.raises(errors.InputError, match="of one file"):
                CacheInfo.from_fds([fd], [fd], token=TOKEN)
        finally:
            os.close(fd)

    @pytest.mark.parametrize("given", [None, 3, "34", b"34", [None], ["3"], list(range(33))])
    def test_given_files_refuse_wrong_descriptors(self, given: Any) -> None:
        with pytest.raises(errors.InputError, match="cache file"):
            CacheInfo.from_fds(given, token=TOKEN)

    def test_no_token(self) -> None:
        with pytest.raises(errors.InputError, match="need a token"):
            CacheInfo.from_fds(token=cast("bytes", None))

    def test_given_files_are_unused_by_several_steps(self, tmp_path: Path) -> None:
        fds = self.files(tmp_path, 2)
        try:
            given = CacheInfo.from_fds(fds[:1], fds[1:], token=TOKEN)
            what, reason = outcome(list(two()), given)
        finally:
            for fd in fds:
                os.close(fd)
        assert what == "off"
        assert "one step" in reason
