"""What a start from the cache imports: no more than it needs
(docs/decisions/0011-what-a-warm-start-loads.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from benchmarks.cache import small
from benchmarks.starts import Start
from tests.support_xnnpack import needs_litert

MOST_MODULES: Final = 113
"""Modules of Penstock's own that a hit on one device may import. `penstock.execution.priority` is
one:
the first run already counts for who shares its device; `penstock.closing` another, from which
models, pools and open files have their `with`, `penstock.memory.opening`, which does not wait for a
named pipe, `penstock.interrupts`, by which every stage of a compile sees its deadline,
`penstock.execution.executable`, what a run, a burst and a fenced run share, and
`penstock.compilation.prepared`, what a compile makes.
"""

UNWANTED: Final = (
    # Of the standard library, whatever NumPy has not imported already.
    *[
        "asyncio",
        "concurrent.futures",
        "copy",
        "csv",
        "dataclasses",
        "email",
        "importlib.metadata",
        "importlib.resources",
    ],
    *[
        "ipaddress",
        "json",
        "logging",
        "multiprocessing",
        "pathlib",
        "pickle",
        "socket",
        "subprocess",
        "tempfile",
        "tomllib",
    ],
    *["traceback", "urllib.parse", "zipfile"],
    # Of others.
    *[
        "flatbuffers",
        "keyring",
        "ml_dtypes",
        "onnx",
        "onnxruntime",
        "openvino",
        "platformdirs",
        "rich",
        "typer",
        "PIL",
    ],
    # What writes, waits, evicts, explains or seals.
    *(f"penstock.cache.{name}" for name in ["cache", "claim", "eviction", "lease"]),
    *(f"penstock.compilation.{name}" for name in ["cache_faults", "filling"]),
    "penstock.faults",
    *(f"penstock.sealed.{name}" for name in ["late", "replacing", "writing"]),
    # What other files, or other devices, need.
    *(f"penstock.loaders.tflite.{name}" for name in ["calls", "catalog", "states"]),
    "penstock.loaders.onnx",
    *("penstock.ir.builder", "penstock.export"),
    # What hashes again. The driver `sample` itself validates, and looks for pools.
    "penstock.ir.digest",
    *(f"penstock.hal.{name}" for name in ["buffer", "fence"]),
    # Other ways to run than once.
    *(
        f"penstock.execution.{name}"
        for name in ["adapters", "asynchronous", "burst", "fenced", "recovery", "series"]
    ),
    # What more than one device, or several steps, need; tuning, showing, tracing.
    *(f"penstock.partitioning.{name}" for name in ["arrangement", "dynamic", "greedy"]),
    # What decodes, infers, asks and places: the plan is kept.
    *(
        f"penstock.partitioning.{name}"
        for name in ["placement", "prediction", "split", "support", "work"]
    ),
    *("penstock.ir.infer", "penstock.loaders.flatbuffer", "penstock.loaders.tflite.reader"),
    "penstock.partitioning.show",
    "penstock.runtime.tuning",
    *(
        f"penstock.{name}"
        for name in ["blobcache", "cli", "delegates", "ipc", "nnapi", "testing", "tflite"]
    ),
    *(
        f"penstock.drivers.{name}"
        for name in ["null", "openvino", "onnxruntime", "reference", "xnnpack"]
    ),
)
"""Modules that a hit does not import, nor anything below them."""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Every module that a warm start on `sample` imports after NumPy's."""
    place = tmp_path_factory.mktemp("warm")
    model = place / "small.tflite"
    model.write_bytes(small())
    environment = {"PENSTOCK_STATE_DIR": str(place / "state"), "PENSTOCK_KEY_STORE": "file"}
    start = Start("penstock_modules", (str(model), "sample", str(place / "cache")), environment)
    assert start.run()["compiles"] == 1
    warm = start.run()
    assert warm["compiles"] == 0
    modules: list[str] = warm["modules"]
    return modules


INTERPRETED: Final = (
    *("bz2", "dataclasses", "importlib.resources", "pathlib", "random", "shutil", "tempfile"),
    *("penstock.ir.infer", "penstock.ir.transforms"),
    *("penstock.delegates", "penstock.tflite.aliases"),
)
"""Modules that an interpreter does not import for a network whose plan is kept."""


def test_an_interpreter_imports_little_more(tmp_path: Path) -> None:
    model = tmp_path / "small.tflite"
    model.write_bytes(small())
    environment = {"PENSTOCK_STATE_DIR": str(tmp_path / "s"), "PENSTOCK_KEY_STORE": "file"}
    arguments = (str(model), "sample", str(tmp_path / "c"))
    start = Start("interpreter_modules", arguments, environment)
    start.run()
    modules = start.run()["modules"]
    assert [m for m in modules for name in INTERPRETED if f"{m}.".startswith(f"{name}.")] == []


WRITING: Final = (
    *("penstock.export", "penstock.ir.builder", "penstock.ir.operations", "penstock.ir.validate"),
    *("penstock.loaders.flatbuffer", "penstock.driverkit.site"),
    *(f"penstock.drivers.xnnpack.{name}" for name in ["preparing", "rules", "segments", "support"]),
)
"""Modules that write the file for LiteRT."""


@needs_litert
def test_a_hit_on_xnnpack_imports_nothing_that_writes_its_file(tmp_path: Path) -> None:
    model = tmp_path / "small.tflite"
    model.write_bytes(small())
    environment = {"PENSTOCK_STATE_DIR": str(tmp_path / "s"), "PENSTOCK_KEY_STORE": "file"}
    arguments = (str(model), "xnnpack", str(tmp_path / "c"))
    start = Start("penstock_modules", arguments, environment)
    assert start.run()["compiles"] == 1
    warm = start.run()
    assert warm["compiles"] == 0
    assert [m for m in warm["modules"] for n in WRITING if f"{m}.".startswith(f"{n}.")] == []


def test_a_hit_imports_few_modules(imported: list[str]) -> None:
    own = [name for name in imported if name.split(".")[0] == "penstock"]
    assert len(own) <= MOST_MODULES, sorted(own)


@pytest.mark.parametrize("name", UNWANTED)
def test_a_hit_does_not_import(name: str, imported: list[str]) -> None:
    assert [found for found in imported if f"{found}.".startswith(f"{name}.")] == []


def test_the_unwanted_are_modules_that_exist() -> None:
    """A module that was renamed would be allowed by its new name."""
    here = Path(__file__).parents[2] / "src"
    for name in UNWANTED:
        if name.startswith("penstock."):
            path = here.joinpath(*name.split("."))
            assert path.is_dir() or path.with_suffix(".py").is_file(), name


def test_a_start_is_timed_from_before_its_process() -> None:
    told = Start("bare", ()).run()
    assert told["start_ms"] > 0
    assert 0 < told["wall_ms"] < 300_000
