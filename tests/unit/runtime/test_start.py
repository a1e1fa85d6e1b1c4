"""What a process imports to give a first answer from the cache: counted, since times depend on the
machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock.export import tflite
from penstock.ir import DType, ModelBuilder
from tests.support_programs import run_python

PROGRAM = """
import json, sys
import numpy as np
before = set(sys.modules)
import penstock
compiled = penstock.compile(sys.argv[1], devices=["sample"], cache=sys.argv[2])
outputs = compiled(np.ones((1, 4), np.float32))
print(json.dumps({
    "outputs": outputs[0].tolist(),
    "compiles": compiled.receipt.compiles,
    "modules": sorted(set(sys.modules) - before),
}))
"""

MOST_MODULES = 128
"""Of Penstock's own, on the way to a first answer; some more than there are."""

NEEDLESS = (
    "concurrent.futures.process",
    "email",
    "flatbuffers",
    "importlib.metadata",
    "keyring",
    "ml_dtypes",
    "multiprocessing",
    "numpy.typing",
    "PIL",
    "platformdirs",
    "rich",
    "tempfile",
    "tomllib",
    "typer",
    "zipfile",
)


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    """A cold start and a warm one."""
    directory = tmp_path_factory.mktemp("start")
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1, 4), "x")
    weights = builder.constant(np.arange(8, dtype=np.float32).reshape(2, 4), "weights")
    made = (DType.FLOAT32, (1, 2))
    hidden = builder.operation("FULLY_CONNECTED", [x, weights, None], [made])
    path = directory / "small.tflite"
    path.write_bytes(tflite.write(builder.build(builder.operation("RELU", hidden, [made]))))
    return [_start(path, directory / "cache") for _ in range(2)]


def _start(model: Path, cache: Path) -> dict[str, object]:
    command = [sys.executable, "-c", PROGRAM, str(model), str(cache)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_both_starts_answer_and_only_the_first_compiles(starts: list[dict[str, object]]) -> None:
    assert [s["compiles"] for s in starts] == [1, 0]
    assert [s["outputs"] for s in starts] == [[[6.0, 22.0]]] * 2


def test_a_warm_start_imports_nothing_that_it_does_not_need(
    starts: list[dict[str, object]],
) -> None:
    modules = starts[1]["modules"]
    assert isinstance(modules, list)
    assert set(modules).isdisjoint(NEEDLESS)
    drivers = {m.split(".")[2] for m in modules if m.startswith("penstock.drivers.")}
    assert drivers == {"sample"}
    families = {m for m in modules if m.startswith("penstock.ir.operations.")}
    assert {"penstock.ir.operations.layers", "penstock.ir.operations.activation"} <= families
    assert not {"penstock.ir.operations.recurrent", "penstock.ir.operations.custom"} & families
    unused = {"penstock.cli", "penstock.ipc", "penstock.nnapi", "penstock.tflite"}
    assert not {".".join(m.split(".")[:2]) for m in modules} & (unused | {"penstock.testing"})


def test_a_warm_start_imports_few_modules(starts: list[dict[str, object]]) -> None:
    modules = starts[1]["modules"]
    assert isinstance(modules, list)
    own = [m for m in modules if m.partition(".")[0] == "penstock"]
    assert len(own) <= MOST_MODULES, own


OPEN_SHAPES = """
import sys
import numpy as np
import penstock
compiled = penstock.compile(sys.argv[1], devices=["sample"], cache=False)
assert compiled(np.ones((3, 4), np.float32))[0].shape == (3, 4)
print(sorted({"asyncio", "concurrent.futures", "logging", "zipfile"} & set(sys.modules)))
"""


def test_first_run_of_an_open_shape_imports_no_executors(tmp_path: Path) -> None:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (None, 4), "x")
    made = builder.build(builder.operation("RELU", [x], [(DType.FLOAT32, (None, 4))]))
    (tmp_path / "open.tflite").write_bytes(tflite.write(made))
    done = run_python("-c", OPEN_SHAPES, tmp_path / "open.tflite", check=True)
    assert done.stdout == "[]\n"
