"""The lab device that compiles at the first run, and the one that compiles twice: what is written
late, and when.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import GeneralFailure
from penstock.hal import CacheReport, PrepareConfig
from penstock.sealed.locks import locked
from penstock.testing.contract.caching import Entry
from penstock.testing.lab import LabDevice
from tests.support_lab import network, run, small

ROOT = Path(__file__).resolve().parents[3]
CASE = small()
PLAIN = PrepareConfig()


@pytest.fixture
def entry(tmp_path: Path) -> Entry:
    return Entry(tmp_path / "entry", (2, 1))


def hit(entry: Entry, **options: Any) -> tuple[LabDevice, CacheReport]:
    """What a new process would say of the entry, which must load and run without a compile."""
    device = LabDevice(**options)
    with entry.opened() as config, closing(device.prepare_model_from_cache(config)) as prepared:
        run(prepared, CASE)
        assert (device.compiles, device.loads) == (0, 1)
        return device, prepared.cache_report


def misses(entry: Entry, reason: str) -> bool:
    with entry.opened() as config, pytest.raises(GeneralFailure, match=f"^{reason}: "):
        LabDevice().prepare_model_from_cache(config)
    return True


class TestFirstRun:
    def test_first_run_mode_compiles_and_writes_at_the_first_run(self, entry: Entry) -> None:
        device = LabDevice(mode="first_run")
        with entry.opened() as config:
            prepared = device.prepare_model(CASE.model, config)
        # The handles of the call are closed: the device goes on with its own.
        with closing(prepared):
            assert prepared.cache_report == CacheReport(later=True)
            assert device.compiles == 0
            assert misses(entry, "NotYetWritten")
            run(prepared, CASE)
            assert (device.compiles, device.saves) == (1, 1)
            assert prepared.cache_report == CacheReport("saved", artefact="optimised")
        assert hit(entry)[1].artefact == "optimised"

    def test_threads_compile_once(self) -> None:
        device = LabDevice(mode="first_run")
        with closing(device.prepare_model(network().model, PLAIN)) as prepared:
            threads = [threading.Thread(target=run, args=(prepared, network())) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert (device.compiles, device.engine_calls["execute"]) == (1, 8)

    def test_late_write_needs_the_lock_of_the_entry(self, entry: Entry) -> None:
        device = LabDevice(mode="first_run")
        with (
            entry.opened(lock=None) as config,
            closing(device.prepare_model(CASE.model, config)) as prepared,
        ):
            assert prepared.cache_report.save == "failed"
            assert prepared.cache_report.reason.startswith("NotYetWritten: ")
            run(prepared, CASE)
        assert entry.contents() == [b""] * 3

    def test_first_run_reads_an_entry_written_by_another_process(self, entry: Entry) -> None:
        first, second = LabDevice(mode="first_run"), LabDevice(mode="first_run")
        with (
            entry.opened() as one,
            entry.opened() as other,
            closing(first.prepare_model(CASE.model, one)) as early,
            closing(second.prepare_model(CASE.model, other)) as late,
        ):
            run(early, CASE)
            run(late, CASE)
            assert late.cache_report == CacheReport(artefact="optimised")
        assert (first.compiles, second.compiles, second.loads) == (1, 0, 1)

    def test_first_run_compiles_and_leaves_a_spoiled_entry_alone(self, entry: Entry) -> None:
        device = LabDevice(mode="first_run")
        with (
            entry.opened() as config,
            closing(device.prepare_model(CASE.model, config)) as prepared,
        ):
            entry.put([b"something else" * 40] * 3)
            run(prepared, CASE)
            assert prepared.cache_report.save == "failed"
            assert prepared.cache_report.reason.startswith("ForeignEntry: ")
        assert entry.contents() == [b"something else" * 40] * 3

    def test_a_model_that_is_never_run_leaves_an_empty_entry(self, entry: Entry) -> None:
        with entry.opened() as config:
            LabDevice(mode="first_run").prepare_model(CASE.model, config).close()
        assert misses(entry, "NotYetWritten")

    def test_wrong_number_of_files_is_reported_at_once(self, entry: Entry) -> None:
        with entry.opened(data_cache=()) as config:
            prepared = LabDevice(mode="first_run").prepare_model(CASE.model, config)
        assert prepared.cache_report.reason.startswith("InvalidArgument: ")
        run(prepared, CASE)


class TestStaged:
    def test_the_baseline_at_once_and_the_optimised_form_after_the_uses(self, entry: Entry) -> None:
        device = LabDevice(mode="staged", uses=3)
        with entry.opened() as config:
            prepared = device.prepare_model(CASE.model, config)
        with closing(prepared):
            assert prepared.cache_report == CacheReport("saved", later=True, artefact="baseline")
            for uses in range(1, 6):
                run(prepared, CASE)
                assert device.compiles == 1 + (uses >= 3)
                artefact = "optimised" if uses >= 3 else "baseline"
                assert hit(entry)[1].artefact == artefact
            assert prepared.cache_report == CacheReport("saved", artefact="optimised")
        assert device.saves == 2

    def test_staged_device_improves_a_loaded_baseline(self, entry: Entry) -> None:
        with entry.opened() as config:
            LabDevice(mode="staged").prepare_model(CASE.model, config).close()
        device = LabDevice(mode="staged", uses=2)
        with entry.opened() as config:
            prepared = device.prepare_model_from_cache(config)
        with closing(prepared):
            assert prepared.cache_report == CacheReport(later=True, artefact="baseline")
            for _ in range(3):
                run(prepared, CASE)
        assert (device.compiles, device.loads, device.saves) == (1, 1, 1)
        report = hit(entry, mode="staged")[1]
        assert report == CacheReport(artefact="optimised")

    def test_the_second_finds_what_the_first_has_optimised(self, entry: Entry) -> None:
        first, second = LabDevice(mode="staged", uses=1), LabDevice(mode="staged", uses=1)
        with entry.opened() as config:
            early = first.prepare_model(CASE.model, config)
        with entry.opened() as config:
            late = second.prepare_model_from_cache(config)
        with closing(early), closing(late):
            run(early, CASE)
            run(late, CASE)
            assert late.cache_report == CacheReport(artefact="optimised")
        assert (first.compiles, second.compiles, second.loads) == (2, 0, 2)

    @pytest.mark.parametrize("how", ["replaced", "removed"])
    def test_late_write_leaves_replaced_entries_alone(
        self, how: str, entry: Entry, tmp_path: Path
    ) -> None:
        device = LabDevice(mode="staged", uses=1)
        with entry.opened() as config:
            prepared = device.prepare_model(CASE.model, config)
        other = Entry(tmp_path / "other", (2, 1))
        with other.opened() as config:
            LabDevice(version="2").prepare_model(CASE.model, config).close()
        published = other.contents()
        for path, new in zip(entry.paths, other.paths, strict=True):
            if how == "replaced":
                new.replace(path)
            else:
                path.unlink()
        with closing(prepared):
            run(prepared, CASE)
            assert prepared.cache_report.save == "failed"
            assert prepared.cache_report.reason.startswith("NoEntry: ")
            run(prepared, CASE)
        assert device.compiles == 2
        if how == "replaced":
            assert entry.contents() == published

    def test_threads_optimise_once(self) -> None:
        device = LabDevice(mode="staged", uses=5)
        with closing(device.prepare_model(CASE.model, PLAIN)) as prepared:

            def work() -> None:
                for _ in range(10):
                    run(prepared, CASE)

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert device.compiles == 2

    def test_closing_before_the_uses_writes_nothing(self, entry: Entry) -> None:
        device = LabDevice(mode="staged", uses=1)
        with entry.opened() as config:
            prepared = device.prepare_model(CASE.model, config)
        prepared.close()
        run(prepared, CASE)
        assert device.compiles == 2
        assert hit(entry)[1].artefact == "baseline"


CHILD = """
import sys
from contextlib import closing
from pathlib import Path
from penstock.testing.contract.caching import Entry
from penstock.testing.lab import LabDevice
from tests.support_lab import run, small

mode, path, act = sys.argv[1:]
case = small()
entry = Entry(Path(path), (2, 1))
device = LabDevice(mode=mode, uses=1)
with entry.opened() as config:
    prepared = (
        device.prepare_model_from_cache(config)
        if act == "load"
        else device.prepare_model(case.model, config)
    )
with closing(prepared):
    print("ready", flush=True)
    sys.stdin.readline()
    run(prepared, case)
    report = prepared.cache_report
    print(device.compiles, report.save, report.artefact, report.reason, flush=True)
"""


class Child:
    """A process with a lab device that has prepared or loaded, and runs when it is told to."""

    def __init__(self, mode: str, entry: Entry, act: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, mode, str(entry.directory), act],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def said(self) -> list[str]:
        """Compiles, what came of the save, the artefact, and the reason."""
        out, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0
        return out.split(maxsplit=3)


class TestTwoProcesses:
    @pytest.mark.parametrize("mode", ["first_run", "staged"])
    def test_the_next_process_hits_what_was_written_late(self, mode: str, entry: Entry) -> None:
        child = Child(mode, entry, "prepare")
        if mode == "staged":
            assert hit(entry)[1].artefact == "baseline"
        else:
            assert misses(entry, "NotYetWritten")
        child.go()
        assert child.said()[1:] == ["saved", "optimised"]
        assert hit(entry)[1].artefact == "optimised"

    @pytest.mark.parametrize("mode", ["first_run", "staged"])
    def test_two_late_writers_leave_one_entry(self, mode: str, entry: Entry) -> None:
        """Both run at the same moment: whoever comes second reads what the first wrote, or drops
        his write.
        """
        first = Child(mode, entry, "prepare")
        second = Child(mode, entry, "prepare" if mode == "first_run" else "load")
        first.go()
        second.go()
        said = [first.said(), second.said()]
        assert {(s[1], s[2]) for s in said} <= {
            ("saved", "optimised"),
            ("none", "optimised"),
            ("failed", "optimised"),
        }
        assert [s[1] for s in said].count("saved") == 1
        assert all(s[3].startswith("ForeignEntry: ") for s in said if s[1] == "failed")
        assert hit(entry)[1].artefact == "optimised"

    def test_readers_find_one_form_or_the_other_while_it_is_written(self, entry: Entry) -> None:
        """Under the entry's lock, as the runtime reads."""
        child = Child("staged", entry, "prepare")
        found = {hit(entry)[1].artefact}
        child.go()
        while child.process.poll() is None:
            with entry.opened() as config:
                assert config.lock is not None
                with locked(config.lock.fd, exclusive=False, timeout=30) as held:
                    assert held
                    device = LabDevice()
                    with closing(device.prepare_model_from_cache(config)) as prepared:
                        run(prepared, CASE)
                        found.add(prepared.cache_report.artefact)
        child.said()
        # A writer that never finds the lock free leaves the form that is there.
        assert {*found, hit(entry)[1].artefact} <= {"baseline", "optimised"}
