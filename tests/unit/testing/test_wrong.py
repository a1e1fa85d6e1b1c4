"""`WrongDevice`: wrong where it is told to be, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

import penstock
from penstock.drivers.reference import create as reference
from penstock.errors import InputError
from penstock.hal import Capabilities
from penstock.ir import DType, Model, ModelBuilder, NDArray, Operand, Quantization
from penstock.partitioning.policy import Policy
from penstock.runtime.distance import distance_of
from penstock.testing.doubles import LabDevice, WrongDevice
from penstock.testing.doubles.lying import spoil

X = np.linspace(-1, 1, 16, dtype=np.float32)
F32, INT8 = DType.FLOAT32, DType.INT8
Q = Quantization((0.1,), (0,))


def network(dtype: DType = F32) -> Model:
    quantization = Q if dtype is INT8 else None
    b = ModelBuilder()
    x = b.input(dtype, (16,), "x", quantization)
    for kind in ("ABS", "RELU"):
        given = Operand(dtype, (16,), name=kind, quantization=quantization)
        (x,) = b.operation(kind, [x], [given])
    return b.build([x])


def outputs(device: WrongDevice, runs: int = 1, model: Model | None = None) -> list[NDArray]:
    policy = Policy(allow_fallback=False)
    with penstock.compile(
        model or network(), devices=[device], cache=None, policy=policy
    ) as compiled:
        return [compiled(X)[0] for _ in range(runs)]


def wrong(kind: str, fault: str, **how: object) -> WrongDevice:
    # As given.
    return WrongDevice(reference(), kind, fault, "wrong", **how)  # type: ignore[arg-type]


RIGHT = np.abs(X)


def test_wrong_device_leaves_other_operations_right() -> None:
    device = wrong("TANH", "much")
    assert outputs(device)[0].tolist() == RIGHT.tolist()
    assert device.wrong == 0


@pytest.mark.parametrize("kind", ["ABS", "RELU"])
@pytest.mark.parametrize("fault", ["much", "nan", "noise"])
def test_fault_much_departs_from_the_reference(kind: str, fault: str) -> None:
    (got,) = outputs(wrong(kind, fault))
    assert distance_of(network(), [X], [got], [RIGHT]).departs


def test_a_little_stays_within_the_class() -> None:
    (got,) = outputs(wrong("ABS", "little"))
    assert got.tolist() != RIGHT.tolist()
    assert not distance_of(network(), [X], [got], [RIGHT]).departs
    whole = np.arange(-8, 8, dtype=np.int8)
    spoilt = whole.copy()
    spoil(spoilt, "little")
    found = distance_of(network(INT8), [whole], [spoilt], [whole])
    assert (found.value, found.departs) == (1, False)


def test_noise_differs_each_time_and_comes_again_in_the_same_order() -> None:
    first, second = (outputs(wrong("ABS", "noise"), 8) for _ in range(2))
    assert [a.tolist() for a in first] == [a.tolist() for a in second]
    assert len({a.tobytes() for a in first}) > 3
    assert any(a.tolist() == RIGHT.tolist() for a in first)


def test_wrong_device_is_wrong_after_some_runs_or_for_some_inputs() -> None:
    late = outputs(wrong("ABS", "much", after=2), 4)
    assert [a.tolist() == RIGHT.tolist() for a in late] == [True, True, False, False]

    def never(_: Sequence[NDArray]) -> bool:
        return False

    assert outputs(wrong("ABS", "much", when=never))[0].tolist() == RIGHT.tolist()


def test_wrong_device_spoils_outputs_in_pools() -> None:
    class PoolsOnly(WrongDevice):
        @property
        def capabilities(self) -> Capabilities:
            return replace(self.device.capabilities, accepts_host_memory=False)

    device = PoolsOnly(LabDevice(), "RELU", "much", "wrong")
    b = ModelBuilder()
    x = b.input(F32, (16,), "x")
    (out,) = b.operation("RELU", [x], [Operand(F32, (16,), name="out")])
    with penstock.compile(b.build([out]), devices=[device], cache=None) as compiled:
        assert compiled(RIGHT)[0].tolist() != RIGHT.tolist()
    assert device.wrong == 1


def test_a_fault_that_there_is_not() -> None:
    with pytest.raises(InputError, match="no fault is named 'more'"):
        wrong("ABS", "more")
