"""Buffers of the OpenVINO device: aligned memory that its infer requests are bound to, run after
run.
"""

from __future__ import annotations

import numpy as np
import pytest

import penstock
from penstock.driverkit.artefact import Port, Ports, interface_of
from penstock.errors import GeneralFailure, InvalidArgument
from penstock.hal import BufferDesc, BufferRole, PrepareConfig
from penstock.ir import DType, Lifetime, ModelBuilder, Operand, Quantization
from penstock.memory import DeviceBuffer, MemoryPool
from penstock.memory.domain import ALIGNMENT
from penstock.testing import assert_no_copies
from tests.support_openvino import cpu, needs_openvino

pytestmark = needs_openvino

F32 = DType.FLOAT32


def test_state_stays_in_the_memory_that_the_engine_computes_on() -> None:
    b = ModelBuilder()
    x, h = b.input(F32, (4, 5), "x"), b.input(F32, (4, 5), "h")
    after = Operand(F32, (4, 5), Lifetime.TEMPORARY_VARIABLE, "after")
    sums = b.operation("ADD", [x, h], [after])
    device = cpu()
    with (
        penstock.compile(b.build(sums), devices=[device], cache=None) as compiled,
        compiled.allocate(inputs=["x"]) as given,
    ):
        assert isinstance(given, DeviceBuffer)
        assert given.device == device.name
        bound = compiled.bind_state({"after": "h"})
        given.copy_from(np.ones((4, 5), np.float32))
        compiled.run([given])
        assert device.domain is not None
        addresses = set()
        with assert_no_copies():
            for _ in range(4):
                compiled.run([given])
                values = [device.domain.find(token)._value for token in (2, 3)]
                addresses |= {v.content.ctypes.data for v in values if v is not None}
        # Two buffers, each of which has a value and room for the next.
        assert len(addresses) <= 4
        assert all(address % ALIGNMENT == 0 for address in addresses)
        assert np.array_equal(bound.read("h"), np.full((4, 5), 5, np.float32))


def test_the_artefact_knows_how_its_ports_are_quantised() -> None:
    """So that roles which are quantised otherwise are refused of an imported model, too."""
    ports = Ports((Port("x", "int8", (2,), Quantization((0.5,), (3,))),), (), (), True)
    (operand,) = interface_of(ports).entry.operands
    assert operand.quantization == Quantization((0.5,), (3,))


def test_unknown_sizes_and_foreign_models_are_refused() -> None:
    b = ModelBuilder()
    x = b.input(F32, (2, 3), "x")
    model = b.build(b.operation("RELU", [x], [(F32, (2, 3))]))
    device, other = cpu(), cpu()
    prepared = other.prepare_model(model, PrepareConfig())
    with pytest.raises(InvalidArgument, match="no prepared model of this device"):
        device.allocate(BufferDesc(), [BufferRole(prepared, "input", 0)])
    token, buffer = other.allocate(BufferDesc(), [BufferRole(prepared, "input", 0)])
    assert token == 1
    buffer.close()
    with MemoryPool.anonymous(24) as pool, pytest.raises(GeneralFailure, match="closed"):
        buffer.copy_from(pool.memory, (2, 3))
    prepared.close()
