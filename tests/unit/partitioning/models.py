"""Small models over ADD, RELU and their like, every value of shape (2, 3) and float32."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.ir import DType, Model, ModelBuilder, Operand

SHAPE = (2, 3)


class Net(ModelBuilder):
    """`net.add("sum", a, b)`: an operation named by the name of its output."""

    def value(self, name: str, dtype: DType = DType.FLOAT32) -> Operand:
        return Operand(dtype, SHAPE, name=name)

    def source(self, name: str, dtype: DType = DType.FLOAT32) -> int:
        return self.input(dtype, SHAPE, name)

    def op(self, kind: str, name: str, *inputs: int, dtype: DType = DType.FLOAT32) -> int:
        return self.operation(kind, inputs, [self.value(name, dtype)])[0]

    def add(self, name: str, a: int, b: int) -> int:
        return self.op("ADD", name, a, b)

    def relu(self, name: str, a: int) -> int:
        return self.op("RELU", name, a)


def chain(kinds: Sequence[str], name: str = "v") -> Model:
    """x -> kinds[0] -> kinds[1] -> ...; two-input kinds take their input twice. Outputs are v0, v1,
    ...
    """
    net = Net()
    at = net.source("x")
    for index, kind in enumerate(kinds):
        one = kind in {"RELU", "NEG"}
        at = net.op(kind, f"{name}{index}", at) if one else net.op(kind, f"{name}{index}", at, at)
    return net.build([at])
