"""Kernels over the rows of a tensor, its last axis: what functions of whole rows share."""

from __future__ import annotations

from collections.abc import Callable

from penstock.compiler.expression import Expression, Scope, Value, identity
from penstock.compiler.legalise.builder import Operation
from penstock.compiler.legalise.elementwise import I32
from penstock.compiler.program import Access, Combine, along
from penstock.driverkit.site import require
from penstock.ir import DType


class Rows:
    """Kernels over the rows of a tensor: its last axis."""

    def __init__(self, operation: Operation) -> None:
        site = operation.site
        self.operation, self.build, self.shape = operation, operation.build, site.shape()
        require(len(self.shape) > 0, "a scalar has no axis")
        self.source = operation.tensor()
        self.dtype = site.input().dtype
        self._row = along(*range(len(self.shape) - 1))

    def one(self, tensor: int) -> Access:
        """The number that *tensor* has for a row."""
        return Access(tensor, self._row)

    def every(self, tensor: int) -> Access:
        """The elements of a row of *tensor*, which has the shape of the rows."""
        return self.operation.whole(tensor)

    def reduced(
        self, name: str, reads: list[Access], body: Expression, combine: Combine, sums: DType
    ) -> int:
        """A number for each row."""
        made = self.build.tensor(sums, self.shape[:-1])
        self.build.emit(
            name, self.shape[:-1], reads, body, self.one(made), reduced=self.shape[-1:],
            combine=combine, sums=sums,
        )  # fmt: skip
        return made

    def greatest(self) -> int:
        """The greatest value of each row."""
        whole = self.every(self.source)
        return self.reduced("greatest", [whole], identity(self.dtype), "maximum", self.dtype)

    def made(self, name: str, reads: list[Access], body: Expression, target: int) -> None:
        """Writes an element of *target* for each one of the rows."""
        self.build.emit(name, self.shape, reads, body, self.every(target))

    def of_row(self, name: str, source: int, function: Callable[[Value], Value]) -> int:
        """A function of the number that *source* has for each row."""
        scope = Scope(self.build.tensors[source].dtype)
        body = scope.finish(function(scope.argument(0)))
        made = self.build.tensor(body.dtype, self.shape[:-1])
        self.build.emit(name, self.shape[:-1], [self.one(source)], body, self.one(made))
        return made


def distance(scope: Scope) -> Value:
    """How far the value, argument 0, is below the greatest one, argument 1."""
    return scope.argument(1).cast(I32) - scope.argument(0).cast(I32)
