"""A wrong driver that is installed: its failure written by one program, repeated by another, and
refused by a third.
"""

from __future__ import annotations

import getpass
import json
import os
from pathlib import Path

import numpy as np
import pytest

from penstock.export.tflite import write
from penstock.ir import DType, ModelBuilder, Operand
from tests.e2e.conftest import Program
from tests.support_programs import run_python

DRIVER = """
from penstock.drivers.sample import create as sample
from penstock.testing.doubles import WrongDevice

def create():
    return WrongDevice(sample(), "ADD", name="wrong")
"""

PROGRAM = """
import sys
import numpy as np
import penstock

policy = penstock.Policy(shadow=1)
compiled = penstock.compile(sys.argv[1], ["wrong"], cache=None, policy=policy)
compiled(np.ones((1, 4), np.float32))
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory of packages with the driver `wrong`, and a network."""
    (tmp_path / "site" / "wrong_driver-1.0.dist-info").mkdir(parents=True)
    (tmp_path / "site" / "wrong_driver.py").write_text(DRIVER)
    information = tmp_path / "site" / "wrong_driver-1.0.dist-info"
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: wrong-driver\nVersion: 1.0\n"
    )
    (information / "entry_points.txt").write_text(
        "[penstock.drivers]\nwrong = wrong_driver:create\n"
    )
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (1, 4), "secret_input")
    k = b.constant(np.array([1, 2, 3, 4], np.float32), "secret_weights")
    for index, kind in enumerate(("RELU", "ADD", "RELU")):
        given = [x, k] if kind == "ADD" else [x]
        (x,) = b.operation(kind, given, [Operand(DType.FLOAT32, (1, 4), name=f"secret{index}")])
    (tmp_path / "secret_network.tflite").write_bytes(write(b.build([x])))
    return tmp_path


@pytest.fixture
def environment(place: Path) -> dict[str, str]:
    paths = [str(place / "site"), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PENSTOCK_STATE_DIR": str(place / "state"),
        "PENSTOCK_DEVICES": "",
    }


def test_a_failure_travels_in_a_file(
    program: Program, place: Path, environment: dict[str, str]
) -> None:
    capsule, model = place / "wrong.capsule", place / "secret_network.tflite"
    made = program(
        "doctor", "--capsule", capsule, "--model", model, "--device", "wrong", **environment
    )
    assert made.returncode == 0, made.stderr
    assert capsule.stat().st_mode & 0o777 == 0o600
    content = capsule.read_bytes()
    for private in ("secret", str(place), "penstock-tests", model.name):
        assert private.encode() not in content
    if (user := getpass.getuser()) != "root":
        assert user.encode() not in content
    again = program("replay", capsule, **environment)
    assert (again.returncode, again.stderr) == (
        1,
        "penstock: error: the failure repeats on wrong\n",
    )
    other = program("replay", capsule, "--device", "sample", **environment)
    assert other.returncode == 0, other.stderr
    # Where that driver is not installed the capsule is readable all the same.
    elsewhere = program("replay", capsule)
    assert elsewhere.returncode == 2
    assert "the capsule's device is not here" in elsewhere.stderr


def test_a_capsule_that_is_cut_short_is_a_bad_file(
    program: Program, place: Path, environment: dict[str, str]
) -> None:
    capsule, cut = place / "wrong.capsule", place / "cut.capsule"
    arguments = ("--model", place / "secret_network.tflite", "--device", "wrong")
    assert program("doctor", "--capsule", capsule, *arguments, **environment).returncode == 0
    for length in (0, 10, 100, -1):
        cut.write_bytes(capsule.read_bytes()[:length])
        result = program("replay", cut, **environment)
        assert result.returncode == 3, length
        assert result.stderr.count("\n") == 1, length
        assert "Traceback" not in result.stderr, length


def test_an_oversized_file_is_refused_without_being_read(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "huge.capsule"
    with path.open("wb") as file:
        file.truncate(64 << 30)
    result = program("replay", path)
    assert result.returncode == 3
    assert "a capsule has 1073741824 at most" in result.stderr


def test_a_program_that_ends_at_once_still_finds_the_fault_if_it_closes(
    program: Program, place: Path, environment: dict[str, str]
) -> None:

    source = PROGRAM + "compiled.close()\n"
    ran = run_python(
        "-c", source, str(place / "secret_network.tflite"), env=os.environ | environment
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    doctor = program("doctor", "--json", **environment)
    (verdict,) = json.loads(doctor.stdout)["verdicts"]
    assert (verdict["device"], verdict["types"]) == ("wrong", ["ADD"])
    plan = program(
        *("plan", place / "secret_network.tflite", "-d", "wrong", "-d", "reference", "--json"),
        **environment,
    )
    placed = json.loads(plan.stdout)["plan"]["operations"]
    assert placed[1]["device"] == "reference"
    assert verdict["key"][:12] in placed[1]["reasons"]["wrong"]
    forgotten = program("doctor", "--forget", verdict["key"][:12], **environment)
    assert forgotten.returncode == 0, forgotten.stderr
    assert json.loads(program("doctor", "--json", **environment).stdout)["verdicts"] == []


def test_a_program_that_ends_without_closing_does_not_wait(
    place: Path, environment: dict[str, str]
) -> None:

    slow = DRIVER.replace(
        'WrongDevice(sample(), "ADD", name="wrong")',
        'SlowDevice(WrongDevice(sample(), "ADD", name="wrong"), {"execute": 0.2})',
    ).replace("import WrongDevice", "import SlowDevice, WrongDevice")
    (place / "site" / "wrong_driver.py").write_text(slow)
    ran = run_python(
        "-c", PROGRAM, str(place / "secret_network.tflite"), env=os.environ | environment
    )
    assert (ran.returncode, ran.stderr) == (0, "")


CRASHING = """
import os
from penstock.drivers.sample import create as sample
from penstock.testing.doubles import InterceptedModel, InterceptingDevice

class Crashing(InterceptingDevice):
    def prepare_model(self, model, config):
        prepared = super().prepare_model(model, config)
        if any(o.type == "ADD" for o in model.operations):
            prepared.execute = lambda request, config: os.abort()
        return prepared

def create():
    return Crashing(sample(), "wrong")
"""


def test_driver_that_kills_its_process_leaves_a_capsule(
    program: Program, place: Path, environment: dict[str, str]
) -> None:
    from penstock.ipc.starting import unavailable

    if (reason := unavailable()) is not None:
        pytest.skip(f"drivers cannot be isolated here: {reason}")
    (place / "site" / "wrong_driver.py").write_text(CRASHING)
    capsule, model = place / "c.capsule", place / "secret_network.tflite"
    made = program(
        *("doctor", "--capsule", capsule, "--model", model, "--device", "wrong", "--json"),
        **environment,
    )
    assert made.returncode == 0, made.stderr
    told = json.loads(made.stdout)
    assert told["failure"]["stage"] == "execute"
    assert [o["type"] for o in told["failure"]["operations"]] == ["ADD"]
    assert "SIGABRT" in json.dumps(told["crash"])
    again = program("replay", capsule, **environment)
    assert again.returncode == 1, again.stderr
    assert again.stderr.endswith("penstock: error: the failure repeats on wrong\n")
