"""Fixtures of every test (the corpus, its manifest, leak checks) and the summary of a session."""

from __future__ import annotations

import atexit
import gc
import itertools
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

from penstock.drivers.llvm import compiling
from tests.checked import count_checks, pytest_configure, pytest_runtest_call
from tests.hangs import Hangs
from tests.reports import send_together

__all__ = ["pytest_configure", "pytest_runtest_call"]

count_checks()

ROOT = Path(__file__).resolve().parent.parent
IN_CI = os.environ.get("CI", "").lower() not in {"", "0", "false"}

MEMORY: Final = Path("/dev/shm")
ROOM: Final = 4 << 30
"""Bytes that must be free there; the tests' files are about 0.6 GB."""


def directory_in_memory() -> Path | None:
    """A new directory, removed at the end, where saves wait for no disk; None if there is no such
    place, or not enough of it, or programs may not be run from there.
    """
    try:
        found = os.statvfs(MEMORY)
        if found.f_bavail * found.f_frsize < ROOM or found.f_flag & os.ST_NOEXEC:
            return None
        for left in MEMORY.glob("t[0-9]*"):  # by a process that was killed
            if not Path("/proc", left.name[1:]).exists():
                shutil.rmtree(left, ignore_errors=True)
        # The names of sockets in it must be short.
        made = MEMORY / f"t{os.getpid()}"
        made.mkdir(mode=0o711)
    except OSError:
        return None
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


if "PYTEST_XDIST_WORKER" not in os.environ and (found := directory_in_memory()) is not None:
    os.environ["TMPDIR"] = tempfile.tempdir = str(found)

# Nothing that a test compiles may reach the user's own cache, registries or key.
SCRATCH = Path(tempfile.mkdtemp(prefix="penstock-tests-"))
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)
os.environ["PENSTOCK_STATE_DIR"] = str(SCRATCH / "state")
os.environ["PENSTOCK_CACHE_DIR"] = str(SCRATCH / "cache")
os.environ["PENSTOCK_KEY_STORE"] = "file"
os.environ["PENSTOCK_CALIBRATE"] = "never"
# ONNX Runtime, the judge of ONNX models, reads it when it is loaded.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

# Many tests compile the same models.
pytest.MonkeyPatch().setattr(compiling, "MOST_OBJECTS", 1000)

# A time limit per example would fail on a loaded machine.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "ci", settings.get_profile("default"), derandomize=True, database=None, print_blob=True
)
settings.register_profile(
    "soak", settings.get_profile("default"), max_examples=10_000, print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if IN_CI else "default"))


def find_corpus() -> Path | None:
    """The directory that PENSTOCK_CORPUS names, else `../shared`; None if there is no corpus."""
    given = Path(os.environ.get("PENSTOCK_CORPUS") or ROOT.parent / "shared").expanduser()
    corpus = given if given.is_absolute() else ROOT / given
    return corpus if (corpus / "models" / "manifest.json").is_file() else None


CORPUS = find_corpus()
NO_CORPUS = "no test corpus: set PENSTOCK_CORPUS to the directory that holds models/manifest.json"


def corpus_parameters(found: Iterable[Any], *, arguments: int = 1) -> list[Any]:
    """*found*, the parameters of a test over the corpus's files.

    Without a corpus: one parameter of *arguments* values, which skips. With a corpus an empty list
    stays empty, and its test fails when it is collected.
    """
    if CORPUS is not None:
        return list(found)
    nothing = [None] * arguments
    return [pytest.param(*nothing, id="no-corpus", marks=pytest.mark.skip(reason=NO_CORPUS))]


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The corpus's root: `models/` and more. Without a corpus the test skips; in CI it fails."""
    if CORPUS is None:
        if IN_CI:
            pytest.fail(NO_CORPUS, pytrace=False)
        pytest.skip(NO_CORPUS)
    return CORPUS


@pytest.fixture(scope="session")
def manifest(corpus: Path) -> dict[str, Any]:
    """`models/manifest.json`, parsed once; tests read it and never write to it."""
    parsed: dict[str, Any] = json.loads((corpus / "models" / "manifest.json").read_bytes())
    return parsed


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Three test processes for every two cores: many tests wait for processes that they start."""
    from penstock.threads import allowed_processors

    return -(-3 * allowed_processors() // 2)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    """Gives each of several test processes its share of the cores.

    Engines spin while they wait for their threads, and would keep the cores from other processes.
    NumPy, Penstock and its host processes read the variable when they start; tests of threads set a
    number of their own.
    """
    from penstock.threads import allowed_processors

    share = max(1, allowed_processors() // len(specs))
    os.environ.setdefault("OMP_NUM_THREADS", str(share))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Looks for no garbage while tests are collected: nearly all objects made there stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Excludes the tests themselves from garbage collection: they are many, and stay to the end."""
    gc.collect()
    gc.freeze()


FROZEN_EVERY: Final = 200
_finished = itertools.count(1)


def pytest_runtest_logfinish() -> None:
    """Excludes from collection, from time to time, what earlier tests left: engines, models,
    reports.

    Tests that count open resources collect garbage first, and would scan all of it each time.
    """
    if next(_finished) % FROZEN_EVERY == 0:
        gc.collect()
        gc.freeze()


def stamps(*tops: Path) -> dict[Path, int]:
    """When each file of Python below *tops* was last written, in nanoseconds."""
    return {path: path.stat().st_mtime_ns for top in tops for path in top.rglob("*.py")}


SOURCES: Final = (ROOT / "src", ROOT / "tests", ROOT / "examples")
_began: dict[Path, int] = {}


def pytest_sessionstart(session: pytest.Session) -> None:
    """Notes the state of the sources before the tests; with xdist the controller does."""
    send_together(session.config)
    session.config.pluginmanager.register(Hangs(session.config))
    if not hasattr(session.config, "workerinput"):
        _began.update(stamps(*SOURCES))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    report_changes(terminalreporter, _began, stamps(*SOURCES))
    ids = {
        report.nodeid
        for reports in terminalreporter.stats.values()
        for report in reports
        if hasattr(report, "nodeid")
    }
    if ids:
        terminalreporter.line(functions_and_cases(ids))


def functions_and_cases(ids: Iterable[str]) -> str:
    """How many test functions the node ids belong to, and how many cases they are."""
    cases = set(ids)
    functions = {case.partition("[")[0] for case in cases}
    return f"{len(functions)} test functions, {len(cases)} cases"


def report_changes(reporter: Any, before: dict[Path, int], now: dict[Path, int]) -> None:
    """Reports the files that were written, made or removed while tests ran.

    This process keeps the modules that it has imported. Processes that start later, and tests that
    read sources, see the new files.
    """
    if changed := sorted({path for path, _ in before.items() ^ now.items()}):
        reporter.section("files that changed while the tests ran")
        for path in changed:
            reporter.line(str(path))
        reporter.line(
            "The tests saw old and new ones: neither failing nor passing proves anything."
        )


def open_descriptors() -> set[tuple[int, str]]:
    """(number, target) of every open descriptor of this process; empty without /proc/self/fd."""
    directory = "/proc/self/fd"
    if not Path(directory).is_dir():
        return set()
    found = set()
    # Most tests ask twice, among some hundred descriptors: `Path` would take most of that time.
    for name in os.listdir(directory):  # noqa: PTH208
        try:
            found.add((int(name), os.readlink(f"{directory}/{name}")))  # noqa: PTH115
        except OSError:  # the descriptor that listed the directory is closed by now
            continue
    return found


def wait_for_hosts(seconds: float = 60.0) -> None:
    """Waits until no thread starts a driver's process or checks its availability.

    A call that ends before its driver's process is ready leaves the start to a thread. What that
    thread opens belongs to a later test.
    """
    end = time.monotonic() + seconds
    names = ("penstock-availability", "penstock-start")
    while starting := [thread for thread in threading.enumerate() if thread.name in names]:
        starting[0].join(max(0.0, end - time.monotonic()))
        if time.monotonic() >= end:
            return


@pytest.fixture
def no_descriptor_leaks() -> Iterator[None]:
    """Fails a test that leaves a file descriptor open.

    A directory opts in with `pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")` in each
    file, or for all its files with an autouse fixture of its own conftest that asks for this one.
    """
    wait_for_hosts()
    before = open_descriptors()
    yield
    # A thread writes the record of a failed run; it must have ended.
    if (evidence := sys.modules.get("penstock.capsules.evidence")) is not None:
        evidence.wait()
    leaked = open_descriptors() - before
    if leaked:
        pytest.fail(f"left open: {sorted(leaked)}", pytrace=False)
