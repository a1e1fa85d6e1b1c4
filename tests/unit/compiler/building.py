"""Small programs, kernel by kernel, for tests of single passes."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.compiler.expression import Expression, Scope, identity
from penstock.compiler.program import Access, Combine, Kernel, Position, Program, Tensor, along
from penstock.ir import DType, NDArray

F32 = DType.FLOAT32


class Builder:
    """Collects tensors and kernels."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.constants: dict[int, NDArray] = {}
        self.kernels: list[Kernel] = []
        self.aliases: dict[int, int] = {}

    def tensor(self, shape: Sequence[int], dtype: DType = F32, value: NDArray | None = None) -> int:
        """A new tensor, constant if it has a *value*."""
        self.tensors.append(Tensor(dtype, tuple(shape), f"t{len(self.tensors)}"))
        if value is not None:
            self.constants[len(self.tensors) - 1] = value
        return len(self.tensors) - 1

    def whole(self, tensor: int) -> Access:
        return Access(tensor, along(*range(len(self.tensors[tensor].shape))))

    def kernel(
        self, name: str, reads: Sequence[Access], body: Expression, target: int,
        *, loops: Sequence[int] | None = None, write: Access | None = None,
        reduced: Sequence[int] = (), combine: Combine = "none",
    ) -> int:  # fmt: skip
        """Adds a kernel that writes *target*, all of it unless *write* says otherwise."""
        shape = self.tensors[target].shape if loops is None else loops
        self.kernels.append(
            Kernel(
                name, tuple(shape), tuple(reads), body, identity(body.dtype),
                write or self.whole(target), tuple(reduced), combine, body.dtype,
                origin=(len(self.kernels),),
            )
        )  # fmt: skip
        return target

    def copy(self, source: int, shape: Sequence[int], offsets: Sequence[int],
             fill: float | None = None) -> int:  # fmt: skip
        """A tensor of *shape* with the elements of *source* from *offsets* on."""
        dtype = self.tensors[source].dtype
        axes = tuple(Position(o, ((i, 1),)) for i, o in enumerate(offsets))
        target = self.tensor(shape, dtype)
        return self.kernel("copy", [Access(source, axes, fill)], identity(dtype), target)

    def unary(self, operation: str, source: int) -> int:
        """*operation* of each element of *source*."""
        value = self.tensors[source]
        target = self.tensor(value.shape, value.dtype)
        scope = Scope(value.dtype)
        body = scope.finish(scope.argument(0).apply(operation))
        return self.kernel(operation, [self.whole(source)], body, target)

    def binary(self, operation: str, a: int, b: int) -> int:
        """*operation* of the elements of *a* and *b*."""
        value = self.tensors[a]
        target = self.tensor(value.shape, value.dtype)
        scope = Scope(value.dtype, value.dtype)
        body = scope.finish(scope.argument(0).apply(operation, scope.argument(1)))
        return self.kernel(operation, [self.whole(a), self.whole(b)], body, target)

    def sums(self, source: int) -> int:
        """The sums of *source* along its last axis."""
        value = self.tensors[source]
        target = self.tensor(value.shape[:-1], value.dtype)
        return self.kernel(
            "sum", [self.whole(source)], identity(value.dtype), target,
            reduced=value.shape[-1:], combine="sum",
        )  # fmt: skip

    def sums_of_pairs(self, source: int) -> int:
        """The sums of neighbours of a vector, half as many."""
        value = self.tensors[source]
        target = self.tensor((value.shape[0] // 2,), value.dtype)
        read = Access(source, (Position(0, ((0, 2), (1, 1))),))
        return self.kernel(
            "pairs", [read], identity(value.dtype), target, reduced=(2,), combine="sum"
        )

    def program(self, inputs: Sequence[int], outputs: Sequence[int]) -> Program:
        return Program(
            tuple(self.tensors), self.constants, tuple(self.kernels), tuple(inputs),
            tuple(outputs), self.aliases,
        )  # fmt: skip
