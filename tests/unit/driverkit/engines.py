"""The engines that compile and cache, as the tests that they share see them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final, NamedTuple

import numpy as np
import pytest

from penstock.driverkit.engine import EngineDevice
from penstock.drivers import onnxruntime, openvino
from penstock.drivers.onnxruntime import engine as ort_engine, installation as ort_installation
from penstock.drivers.openvino import installation as ov_installation
from penstock.hal import HostMemory, Request
from penstock.ir import DType, Model, ModelBuilder, NDArray
from tests import support_onnxruntime, support_openvino
from tests.support_operations import F32
from tests.support_programs import run_python


class Engine(NamedTuple):
    """One engine: what it is called, the packages it loads, and its driver."""

    label: str
    packages: tuple[str, ...]
    files: tuple[int, int]
    cpu: Callable[[], EngineDevice]
    create: Callable[[], list[Any]]
    installation: ModuleType
    alike: Callable[[Any], EngineDevice]
    """Another device of the same part of the engine."""
    pretend_version: Callable[[pytest.MonkeyPatch], str]
    """Makes the engine say that it is another version, and returns that."""
    empty_file: str
    """The reason for an empty cache file."""

    @property
    def name(self) -> str:
        return self.packages[0]

    @contextmanager
    def without(self, package: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineDevice]:
        """The only device of a machine without *package*."""
        found = self.installation.package_folder
        monkeypatch.setattr(
            self.installation,
            "package_folder",
            lambda name: None if name == package else found(name),
        )
        self.installation.find_installation.cache_clear()
        try:
            (device,) = self.create()
            yield device
        finally:
            self.installation.find_installation.cache_clear()


def _onnxruntime_version(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(ort_engine.onnxruntime(), "__version__", "0.1")
    return "0.1"


def _openvino_version(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("penstock.drivers.openvino.engine.build_of", lambda _: "CPU 1.0")
    return "CPU 1.0"


ONNXRUNTIME: Final = Engine(
    "ONNX Runtime",
    ("onnxruntime", "onnx"),
    (1, 0),
    support_onnxruntime.cpu,
    onnxruntime.create,
    ort_installation,
    lambda d: onnxruntime.OnnxRuntimeDevice(d.provider, d._installation),
    _onnxruntime_version,
    "NotYetWritten",
)
OPENVINO: Final = Engine(
    "OpenVINO",
    ("openvino",),
    (1, 1),
    support_openvino.cpu,
    openvino.create,
    ov_installation,
    lambda d: openvino.OpenVinoDevice(d.plugin, d._installation),
    _openvino_version,
    "WrongLength",
)
ENGINES: Final = {"onnxruntime": ONNXRUNTIME, "openvino": OPENVINO}
INSTALLED: Final = [
    pytest.param(ONNXRUNTIME, id="onnxruntime", marks=support_onnxruntime.needs_onnxruntime),
    pytest.param(OPENVINO, id="openvino", marks=support_openvino.needs_openvino),
]
EVERY: Final = [pytest.param(engine, id=name) for name, engine in ENGINES.items()]


def relu(shape: tuple[int | None, ...] = (4,), dtype: DType = F32) -> Model:
    b = ModelBuilder()
    return b.build(b.operation("RELU", [b.input(dtype, shape, "x")], [(dtype, shape)]))


def products(count: int, size: int) -> Model:
    """So many products of large matrices: each takes long on one thread."""
    b = ModelBuilder()
    x = b.input(F32, (size, size), "x")
    y = x
    for _ in range(count):
        (y,) = b.operation("BATCH_MATMUL", [y, x], [(F32, (size, size))])
    return b.build([y])


def request(given: NDArray, out: NDArray) -> Request:
    return Request((HostMemory(given),), (HostMemory(out),))


MODEL: Final = (
    "import os, sys\n"
    "import numpy as np, penstock\n"
    "from penstock.drivers.{name} import create\n"
    "from penstock.ir import DType, ModelBuilder\n"
    "b = ModelBuilder()\n"
    "x = b.input(DType.FLOAT32, (4,), 'x')\n"
    "model = b.build(b.operation('RELU', [x], [(DType.FLOAT32, (4,))]))\n"
)
"""The beginning of a program that has a model."""


def words_of(program: str) -> list[str]:
    """What *program* prints in a process of its own, by words."""
    done = run_python("-W", "ignore", "-c", program, env=os.environ)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def ones(size: int) -> tuple[NDArray, NDArray]:
    """Zeros to read and ones to write, square."""
    return np.zeros((size, size), np.float32), np.ones((size, size), np.float32)
