"""Just-in-time and multi-stage compilation with OpenVINO: what is written late is what the next
process loads.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest

import penstock
from penstock import hal, knobs
from penstock.drivers.openvino import OpenVinoDevice
from penstock.drivers.openvino.preparation import OpenVinoPreparedModel
from penstock.errors import InvalidArgument
from penstock.sealed import locks
from tests.support_artefacts import WEIGHTS, answer, cache_files, network, run
from tests.support_caching import lock_file
from tests.support_openvino import cpu, needs_openvino
from tests.unit.driverkit.engines import OPENVINO
from tests.unit.driverkit.test_engine_caching import compiled

pytestmark = [needs_openvino, pytest.mark.usefixtures("no_descriptor_leaks")]


def opened(folder: Path) -> AbstractContextManager[hal.PrepareConfig]:
    return cache_files(folder, OPENVINO.files)


@contextmanager
def entry(folder: Path) -> Iterator[hal.PrepareConfig]:
    """As `opened`, with the entry's lock."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with opened(folder) as config:
            yield msgspec.structs.replace(config, lock=hal.CacheHandle(lock))
    finally:
        os.close(lock)


def impatient() -> OpenVinoDevice:
    """A CPU device that compiles again after two runs."""
    device = cpu()
    device.uses = 2
    return device


def is_right(prepared: object) -> bool:
    # A prepared model.
    return np.allclose(run(prepared), answer(), atol=1e-4)  # type: ignore[arg-type]


def loaded_elsewhere(folder: Path) -> list[str]:
    """What another process finds: compiles, imports and the artefact's form."""
    program = (
        "from pathlib import Path\n"
        "from tests.unit.drivers.openvino import test_late as t\n"
        "device = t.impatient()\n"
        f"with t.entry(Path({str(folder)!r})) as config:\n"
        "    prepared = device.prepare_model_from_cache(config)\n"
        "assert t.is_right(prepared)\n"
        "print(device.compiles, device.loads, prepared.cache_report.artefact)\n"
        "prepared.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_first_run_compiles_and_writes(tmp_path: Path) -> None:
    device = cpu()
    with (
        knobs.override(driver_settings="openvino_compilation=first_run"),
        entry(tmp_path) as config,
    ):
        prepared = device.prepare_model(network(), config)
    assert (device.compiles, prepared.cache_report.later) == (0, True)
    assert (tmp_path / "model0").read_bytes() == b""
    assert is_right(prepared)
    assert (device.compiles, prepared.cache_report.save) == (1, "saved")
    assert is_right(prepared)
    assert device.compiles == 1
    assert loaded_elsewhere(tmp_path) == ["0", "1", "optimised"]


def test_threads_that_run_first_together_compile_once(tmp_path: Path) -> None:
    device = cpu()
    with (
        knobs.override(driver_settings="openvino_compilation=first_run"),
        entry(tmp_path) as config,
    ):
        prepared = device.prepare_model(network(), config)
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda _: is_right(prepared), range(8)))
    assert device.compiles == 1


def test_a_baseline_is_compiled_again_after_some_runs(tmp_path: Path) -> None:
    device = impatient()
    with knobs.override(driver_settings="openvino_compilation=staged"), entry(tmp_path) as config:
        prepared = device.prepare_model(network(), config)
    report = prepared.cache_report
    assert (report.save, report.later, report.artefact) == ("saved", True, "baseline")
    assert is_right(prepared)
    assert (device.compiles, prepared.cache_report.artefact) == (1, "baseline")
    assert is_right(prepared)
    report = prepared.cache_report
    assert (device.compiles, report.save, report.artefact) == (2, "saved", "optimised")
    assert is_right(prepared)
    assert device.compiles == 2
    assert loaded_elsewhere(tmp_path) == ["0", "1", "optimised"]


def test_staged_device_improves_a_loaded_baseline(tmp_path: Path) -> None:
    with knobs.override(driver_settings="openvino_compilation=staged"), entry(tmp_path) as config:
        cpu().prepare_model(network(), config).close()
    assert loaded_elsewhere(tmp_path) == ["0", "1", "baseline"]
    device = impatient()
    with entry(tmp_path) as config:
        prepared = device.prepare_model_from_cache(config)
    assert is_right(prepared)
    assert is_right(prepared)
    assert (device.compiles, device.loads) == (1, 1)
    assert prepared.cache_report.save == "saved"
    assert is_right(prepared)
    assert loaded_elsewhere(tmp_path) == ["0", "1", "optimised"]


def test_second_improving_device_loads_the_entry_of_the_first(tmp_path: Path) -> None:
    devices = [impatient(), impatient()]
    with knobs.override(driver_settings="openvino_compilation=staged"), entry(tmp_path) as config:
        cpu().prepare_model(network(), config).close()
    prepared = []
    for device in devices:
        with entry(tmp_path) as config:
            prepared.append(device.prepare_model_from_cache(config))
    for each in prepared:
        assert is_right(each)
        assert is_right(each)
    assert [(d.compiles, d.loads) for d in devices] == [(1, 1), (0, 2)]


def test_without_a_cache_it_improves_all_the_same() -> None:
    device = impatient()
    with knobs.override(driver_settings="openvino_compilation=staged"):
        prepared = device.prepare_model(network(), hal.PrepareConfig())
    assert is_right(prepared)
    assert is_right(prepared)
    assert (device.compiles, prepared.cache_report.artefact) == (2, "optimised")


def test_late_write_needs_the_lock_of_the_entry(tmp_path: Path) -> None:
    device = cpu()
    with (
        knobs.override(driver_settings="openvino_compilation=first_run"),
        opened(tmp_path) as config,
    ):
        prepared = device.prepare_model(network(), config)
    assert prepared.cache_report.reason.startswith("NotYetWritten: ")
    assert is_right(prepared)
    assert (tmp_path / "model0").read_bytes() == b""


def test_a_prepared_model_that_never_ran_gives_its_handles_back(tmp_path: Path) -> None:
    device = cpu()
    before = sorted(Path("/proc/self/fd").iterdir())
    with (
        knobs.override(driver_settings="openvino_compilation=first_run"),
        entry(tmp_path) as config,
    ):
        device.prepare_model(network(), config).close()
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_another_word_for_when_is_refused() -> None:
    with (
        knobs.override(driver_settings="openvino_compilation=sometimes"),
        pytest.raises(InvalidArgument, match=r"openvino_compilation .* not 'sometimes'"),
    ):
        cpu().prepare_model(network(), hal.PrepareConfig())


@pytest.fixture
def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(seconds: float) -> None:
        raise AssertionError(f"somebody waits {seconds} s for a lock")

    monkeypatch.setattr("penstock.sealed.locks.time.sleep", sleep)


@contextmanager
def used_by_another(folder: Path, *, exclusive: bool = False) -> Iterator[None]:
    """A block in which another opening of the entry's lock file has the lock."""
    fd = os.open(folder / "lock", os.O_RDWR)
    try:
        with locks.locked(fd, exclusive=exclusive, timeout=0) as held:
            assert held
            yield
    finally:
        os.close(fd)


def first_run(folder: Path, device: OpenVinoDevice) -> OpenVinoPreparedModel:
    with knobs.override(driver_settings="openvino_compilation=first_run"), entry(folder) as config:
        prepared = device.prepare_model(network(), config)
    assert isinstance(prepared, OpenVinoPreparedModel)
    return prepared


@pytest.mark.usefixtures("nobody_waits")
@pytest.mark.parametrize("exclusive", [False, True])
def test_a_first_run_does_not_wait_for_the_entrys_lock(tmp_path: Path, exclusive: bool) -> None:
    device = cpu()
    prepared = first_run(tmp_path, device)
    with used_by_another(tmp_path, exclusive=exclusive):
        for _ in range(2):
            assert is_right(prepared)
            report = prepared.cache_report
            assert (report.save, report.later, report.artefact) == ("none", True, "optimised")
            assert report.reason.startswith("NotYetWritten: another process uses the entry")
    assert (tmp_path / "model0").read_bytes() == b""
    assert is_right(prepared)
    assert prepared.cache_report == hal.CacheReport("saved", artefact="optimised")
    assert is_right(prepared)
    assert device.compiles == 1
    assert loaded_elsewhere(tmp_path) == ["0", "1", "optimised"]


@pytest.mark.usefixtures("nobody_waits")
def test_a_run_that_improves_a_baseline_does_not_wait_for_the_entrys_lock(tmp_path: Path) -> None:
    device = impatient()
    with knobs.override(driver_settings="openvino_compilation=staged"), entry(tmp_path) as config:
        prepared = device.prepare_model(network(), config)
    with used_by_another(tmp_path):
        assert is_right(prepared)
        assert is_right(prepared)
        assert device.compiles == 2
        assert "another process uses the entry" in prepared.cache_report.reason
    assert loaded_elsewhere(tmp_path) == ["0", "1", "baseline"]
    assert is_right(prepared)
    assert loaded_elsewhere(tmp_path) == ["0", "1", "optimised"]


def test_run_near_its_deadline_leaves_the_write_to_a_later_run(tmp_path: Path) -> None:
    device = cpu()
    prepared = first_run(tmp_path, device)
    assert is_right(prepared_with_deadline(prepared, seconds=0.9))
    assert "had time for it before its deadline" in prepared.cache_report.reason
    assert (tmp_path / "model0").read_bytes() == b""
    assert is_right(prepared_with_deadline(prepared, seconds=60))
    assert prepared.cache_report.save == "saved"


def test_write_that_no_run_could_make_is_reported(tmp_path: Path) -> None:
    prepared = first_run(tmp_path, cpu())
    with used_by_another(tmp_path):
        assert is_right(prepared)
    prepared.close()
    report = prepared.cache_report
    assert (report.save, report.later) == ("failed", False)
    assert report.reason.startswith("NotYetWritten: the model was closed first: another process")
    assert (tmp_path / "model0").read_bytes() == b""


def test_the_receipt_of_a_run_says_what_a_late_write_waits_for(tmp_path: Path) -> None:
    with knobs.override(driver_settings="openvino_compilation=first_run"):
        compiled = penstock.compile(network(), devices=["openvino-cpu"], cache=tmp_path)
    lock = lock_file(tmp_path)
    given = [np.zeros((2, 40), np.float32)]
    with compiled, lock.open("r+b") as other:
        with locks.locked(other.fileno(), exclusive=False, timeout=0) as held:
            assert held
            outcome = compiled.run(given, timeout=4).receipt.steps[0].cache
            assert not outcome.saved
            assert "not saved: NotYetWritten: another process uses the entry" in str(outcome)
        outcome = compiled.run(given).receipt.steps[0].cache
        assert outcome.saved
        assert not outcome.not_saved


def prepared_with_deadline(
    prepared: OpenVinoPreparedModel, *, seconds: float
) -> hal.PreparedModelBase:
    """*prepared*, whose runs are to end after so many seconds."""

    class Hurried(hal.PreparedModelBase):
        model = prepared.model

        def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
            deadline = time.monotonic_ns() + int(seconds * 1e9)
            return prepared.execute(request, msgspec.structs.replace(config, deadline_ns=deadline))

    return Hurried()


@pytest.mark.parametrize(
    ("mode", "forms"), [("first_run", ["optimised"]), ("staged", ["baseline", "optimised"])]
)
def test_a_model_written_late_is_found_by_the_next_start(
    tmp_path: Path, mode: str, forms: list[str]
) -> None:
    with knobs.override(driver_settings=f"openvino_compilation={mode}"):
        first = cpu()
        assert compiled(tmp_path, first)[0] == "miss"
        assert first.compiles == 1
        for form in forms:
            device = cpu()
            device.uses = 2
            outcome, reason = compiled(tmp_path, device, runs=3)
            assert outcome == "hit"
            assert form in reason
            assert device.compiles == (form == "baseline")


def test_large_constants_lie_in_the_data_file_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as config:
        cpu().prepare_model(network(), config)
    assert WEIGHTS.tobytes() in (tmp_path / "data0").read_bytes()
    assert WEIGHTS.tobytes()[:64] not in (tmp_path / "model0").read_bytes()
