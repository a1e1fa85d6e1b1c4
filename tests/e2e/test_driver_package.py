"""examples/driver-package: built, installed into a directory of its own, and used through its entry
point.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conftest import ROOT
from tests.support_programs import run_python

TEMPLATE: Final = ROOT / "examples" / "driver-package"
TIMEOUT: Final = 300

RUN: Final = """
import json
import numpy as np
import penstock
from penstock.ir import DType, ModelBuilder

builder = ModelBuilder()
x = builder.input(DType.FLOAT32, (2, 3), "x")
(y,) = builder.operation("LOGISTIC", [x], [(DType.FLOAT32, (2, 3))])
(z,) = builder.operation("TANH", [y], [(DType.FLOAT32, (2, 3))])
model = builder.build([z])
values = np.linspace(-3, 3, 6, dtype=np.float32).reshape(2, 3)
wish = penstock.Policy(require={"LOGISTIC": "example"}, allow_fallback=False)
with (
    penstock.compile(model, devices=["example", "reference"], policy=wish, cache=None) as compiled,
    penstock.compile(model, devices=["reference"], cache=None) as judge,
):
    outputs, wanted = compiled(values), judge(values)
    print(json.dumps({
        "devices": [step.device for step in outputs.receipt.steps],
        "off": float(np.abs(outputs[0] - wanted[0]).max()),
        "reasons": dict(compiled.plan.operations[1].reasons),
    }))
"""


FIXED: Final = """
import json
import sys
import numpy as np
from penstock import nnapi

NAME = "com.example.fixed"
model = nnapi.Model()
x = model.add_operand(nnapi.OperandType.TENSOR_FLOAT32, (2,))
y = model.add_operand(model.get_extension_operand_type(NAME, 0), (2,))
model.set_operand_extension_data(y, (8).to_bytes(4, "little"))
model.add_operation(model.get_extension_operation_type(NAME, 0), [x], [y])
model.identify_inputs_and_outputs([x], [y])
model.finish()
numbers = np.zeros(2, np.int64)
with nnapi.Compilation(model) as compilation:
    compilation.finish()
    with nnapi.Execution(compilation) as execution:
        execution.set_input(0, np.array([1.5, -2.7], np.float32))
        execution.set_output(0, numbers)
        execution.compute()
print(json.dumps({
    "supported": nnapi.get_device_by_name("example").get_extension_support(NAME),
    "isolated": "penstock_example" not in sys.modules,
    "numbers": numbers.tolist(),
}))
"""


class Installed:
    """Programs that find the package, and Penstock, on their path."""

    def __init__(self, site: Path, source: Path) -> None:
        self.source = source
        paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
        kept = {k: v for k, v in os.environ.items() if k != "PENSTOCK_DEVICES"}
        self.environment = {**kept, "PYTHONPATH": os.pathsep.join(paths)}

    def __call__(self, *words: str) -> str:
        done = run_python(*words, cwd=self.source, env=self.environment, timeout=TIMEOUT)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    directory = tmp_path_factory.mktemp("package")
    source, site = directory / "source", directory / "site"
    shutil.copytree(TEMPLATE, source, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    program = Installed(site, source)
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    program("-m", "pip", "install", "--quiet", *offline, "--target", str(site), ".")
    assert (site / "penstock_example" / "py.typed").is_file()
    # What follows must find the installed package, not its source.
    shutil.rmtree(source / "src")
    return program


def test_discovery_finds_the_example_driver(installed: Installed) -> None:
    listed: list[dict[str, Any]] = json.loads(installed("-m", "penstock", "devices", "--json"))[
        "devices"
    ]
    (found,) = [d for d in listed if d["name"] == "example"]
    assert (found["driver"], found["usable"], found["type"]) == ("example", True, "cpu")
    assert found["version"].startswith("1.0 (numpy ")


def test_example_driver_is_isolated_unless_isolation_is_off(installed: Installed) -> None:
    code = (
        "import sys; from penstock.runtime.discovery import manager; manager.choose(['{}'], {});"
        "print('penstock_example' in sys.modules)"
    )
    assert installed("-c", code.format("sample", False)).strip() == "False"
    assert installed("-c", code.format("example", None)).strip() == "False"
    assert installed("-c", code.format("example", False)).strip() == "True"


def test_devices_list_the_example_driver_as_isolated(installed: Installed) -> None:
    listed = json.loads(installed("-m", "penstock", "devices", "--json"))["devices"]
    # The devices of webgpu have a process of their own, too.
    others = {"webgpu", "webgpu-software"}
    assert {d["name"] for d in listed if d["isolated"]} - others == {"example"}


def test_example_driver_passes_the_contract(installed: Installed) -> None:
    report = json.loads(installed("-m", "penstock.testing", "contract", "example", "--json"))
    assert report["failures"] == []
    assert report["passed"] > 70


def test_example_driver_passes_chaos(installed: Installed) -> None:
    words = ("-m", "penstock.testing", "chaos", "example", "--graphs", "1", "--json")
    assert json.loads(installed(*words))["failures"] == []


def test_a_network_is_split_over_it_and_the_reference(installed: Installed) -> None:
    found = json.loads(installed("-c", RUN))
    assert found["devices"] == ["example", "reference"]
    assert found["off"] < 1e-6
    assert found["reasons"] == {"example": "example has no TANH"}


def test_example_extension_runs_in_an_isolated_process(installed: Installed) -> None:
    found = json.loads(installed("-c", FIXED))
    assert found == {"supported": True, "isolated": True, "numbers": [384, -691]}


def test_tests_of_the_example_driver_pass(installed: Installed) -> None:
    printed = installed("-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert " passed" in printed
    assert " failed" not in printed
    assert " xfailed" not in printed
