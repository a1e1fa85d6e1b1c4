"""The device as users meet it: named, explained, not loaded before it is needed, and heard by
nobody.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Final

import numpy as np
import pytest

import penstock
from penstock.drivers.xnnpack import XnnpackDevice
from penstock.drivers.xnnpack.device import ADAPTER_VERSION, Installation, find_installation
from penstock.errors import DeviceUnavailable, GeneralFailure, PlacementError
from penstock.hal import PrepareConfig
from penstock.ir import ConstantPool, DType, Model
from tests.conftest import ROOT
from tests.support_programs import run_python
from tests.support_xnnpack import F32, device, needs_litert, one, q

ABSENT = Installation("", "LiteRT is not installed: pip install 'penstock-nn[xnnpack]'")
I8, U8, I16, I32 = DType.INT8, DType.UINT8, DType.INT16, DType.INT32


def relu(shape: tuple[int | None, ...] = (4,), dtype: DType = F32) -> Model:
    return one("RELU", [(dtype, shape)], [(dtype, shape)])


def test_device_reports_a_missing_litert() -> None:
    absent = XnnpackDevice(ABSENT)
    assert absent.version == f"{ADAPTER_VERSION} (litert missing)"
    assert absent.check() == ABSENT.reason
    with pytest.raises(DeviceUnavailable, match="not installed"):
        absent.prepare_model(relu(), PrepareConfig())
    with pytest.raises(PlacementError, match="cannot be used"):
        penstock.compile(relu(), devices=[absent])


@needs_litert
def test_the_version_names_engine_and_processor() -> None:
    found = find_installation()
    assert device().check() is None
    assert f"litert {found.version};" in device().version
    assert "(" in device().version


@needs_litert
def test_the_device_is_found_by_its_entry_point() -> None:
    (found,) = [d for d in penstock.devices() if d.name == "xnnpack"]
    assert found.usable


def python(program: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return run_python("-W", "ignore", "-c", program, check=True, timeout=timeout)


MODEL = (
    "import os, sys\n"
    "import numpy as np, penstock\n"
    "from penstock.drivers.xnnpack import XnnpackDevice as create\n"
    "from penstock.ir import DType, ModelBuilder\n"
    "b = ModelBuilder()\n"
    "x = b.input(DType.FLOAT32, (4,), 'x')\n"
    "model = b.build(b.operation('RELU', [x], [(DType.FLOAT32, (4,))]))\n"
)


@needs_litert
def test_listing_and_planning_do_not_load_the_engine() -> None:
    program = (
        "device = create()\n"
        "device.version, device.check(), device.supported_operations(model)\n"
        "penstock.devices()\n"
        "penstock.compile(model, devices=['reference'], cache=False).close()\n"
        "print('ai_edge_litert' in sys.modules)\n"
    )
    assert python(MODEL + program).stdout.split() == ["False"]


@needs_litert
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has descriptors by thread")
def test_engine_prints_nothing_and_other_output_appears() -> None:
    """Where threads may not have descriptors of their own, LiteRT says one line; nothing else is
    lost.
    """
    program = (
        "import ctypes, threading\n"
        "allowed = []\n"
        "probe = threading.Thread(target=lambda: allowed.append(ctypes.CDLL(None).unshare(0x400) "
        "== 0))\n"
        "probe.start(), probe.join()\n"
        "os.write(2, b'before\\n')\n"
        "with penstock.compile(model, devices=[create()], cache=False) as net: net(np.zeros(4, "
        "np.float32))\n"
        "os.write(2, b'after\\n')\n"
        "print(allowed[0])\n"
    )
    done = python(MODEL + program)
    heard = [line for line in done.stderr.splitlines() if line not in {"before", "after"}]
    assert {"before", "after"} <= set(done.stderr.splitlines())
    assert len(heard) <= (0 if done.stdout.strip() == "True" else 1), heard


@needs_litert
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_forked_child_compiles_without_hanging() -> None:
    """A prepared model of the parent is refused there: its threads stayed behind."""
    program = (
        "from penstock.errors import DeadObject\n"
        "from penstock.hal import ExecutionConfig, HostMemory, PrepareConfig, Request\n"
        "device, given, out = create(), np.full(4, 2, np.float32), np.zeros(4, np.float32)\n"
        "request = Request((HostMemory(given),), (HostMemory(out),))\n"
        "prepared = device.prepare_model(model, PrepareConfig(num_threads=2))\n"
        "prepared.execute(request, ExecutionConfig())\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    ok = False\n"
        "    try:\n"
        "        prepared.execute(request, ExecutionConfig())\n"
        "    except DeadObject as error:\n"
        "        ok = 'forked' in str(error)\n"
        "    out.fill(0)\n"
        "    device.prepare_model(model, PrepareConfig(num_threads=2)).execute(request, "
        "ExecutionConfig())\n"
        "    os._exit(0 if ok and out.tolist() == [2] * 4 else 1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert python(MODEL + program).stdout.split() == ["0"]


def slice_with_offset() -> Model:
    ints = [np.array(v, np.int32) for v in ([0, 0], [2, 1], [1, 1])]
    return one("STRIDED_SLICE", [(F32, (3, 4)), *ints], [(F32, (2, 1))], {"offset": True})


def quotient(divisor: list[int]) -> Model:
    return one("FLOOR_MOD", [(I32, (2,)), np.array(divisor, np.int32)], [(I32, (2,))])


REFUSED: dict[str, tuple[Callable[[], Model], str]] = {
    "no elements": (lambda: relu((0, 3)), "without elements"),
    "another type": (lambda: relu((3,), DType.FLOAT16), "values of float16"),
    "no scale": (lambda: relu((3,), I8), "without a scale"),
    "unknown rank": (lambda: one("RELU", [(F32, (3,))], [(F32, None)]), "whose rank is unknown"),
    "no rule": (lambda: one("BITWISE_XOR", [(I32, (2,)), (I32, (2,))], [(I32, (2,))]), "not among"),
    "offsets, which LiteRT reads beyond": (slice_with_offset, "ends are offsets"),
    "a fault of the processor": (lambda: quotient([3, -1]), "by 0 or -1"),
    "a quotient by zero": (lambda: quotient([0, 1]), "by 0 or -1"),
    "what ends the process": (
        lambda: one(
            "EQUAL", [(I8, (2,)), (I8, (2,))], [(DType.BOOL, (2,))], scales={0: q(1), 1: q(1)}
        ),
        "values of int8",
    ),
    "int16 without a scale, which ends the process": (
        lambda: one("SUB", [(I16, (2,)), (I16, (2,))], [(I16, (2,))]),
        "without a scale",
    ),
    "shares of a scale that LiteRT does not look at": (
        lambda: one("SOFTMAX", [(U8, (1, 4))], [(U8, (1, 4))], scales={0: q(0.1)},
            out_scale=q(0.1)),
        "not in the scale",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_xnnpack_refusals_name_the_reason(name: str) -> None:
    make, reason = REFUSED[name]
    model = make()
    (answer,) = device().supported_operations(model)
    assert not answer.supported
    assert reason in answer.reason
    if device().check() is None:
        with pytest.raises(GeneralFailure, match="operation 0"):
            device().prepare_model(model, PrepareConfig())


ALIASED: Final = """
import sys
import numpy as np
from penstock import compile, tflite
from penstock.ir import DType, ModelBuilder

tflite.install_aliases()
from ai_edge_litert import interpreter
assert interpreter is tflite
b = ModelBuilder()
x = b.input(DType.FLOAT32, (2, 3), "x")
model = b.build(b.operation("TANH", [x], [(DType.FLOAT32, (2, 3))]))
with compile(model, devices=["xnnpack"], cache=False) as net:
    given = np.ones((2, 3), np.float32)
    print(net.plan.steps[0].device, np.allclose(net(given)[0], np.tanh(given)))
assert sys.modules["ai_edge_litert.interpreter"] is tflite
"""


def test_litert_is_found_behind_the_penstock_launcher() -> None:
    done = run_python("-c", ALIASED)
    assert (done.returncode, done.stdout.strip()) == (0, "xnnpack True"), done.stderr


@needs_litert
def test_constants_are_unloaded_once_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    unloads: list[ConstantPool] = []

    def unload(pool: ConstantPool) -> None:
        unloads.append(pool)

    monkeypatch.setattr(ConstantPool, "unload", unload)
    model = penstock.load(ROOT / "examples/digits/digits_int8.tflite")
    device().prepare_model(model, PrepareConfig(num_threads=1)).close()
    assert unloads == list(model.pools)
