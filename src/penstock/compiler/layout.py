"""Lays tensors out for a target: 8-bit data of one sign, padding stored around a tensor, second
factors by columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from penstock.compiler.columns import by_columns
from penstock.compiler.expression import Expression, Scope, identity
from penstock.compiler.fold import fold_unused
from penstock.compiler.halos import halos
from penstock.compiler.interpreter import product_of
from penstock.compiler.legalise.products import product
from penstock.compiler.program import Access, Kernel, Program, along
from penstock.compiler.rewriting import of_routines
from penstock.compiler.target import Target
from penstock.ir import DType

SIGN: Final = 128
OTHER: Final = {DType.INT8: DType.UINT8, DType.UINT8: DType.INT8}


def lay_out(program: Program, target: Target) -> Program:
    """*program* as *target* wants it."""
    if target.bytes != "as they are":
        stored = DType.INT8 if target.bytes == "signed" else DType.UINT8
        program = stored_as(own_inputs(program, stored), stored)
    else:
        program = own_inputs(program, None)
    if target.halo:
        program = halos(program)
    return fold_unused(by_columns(program))


def own_inputs(program: Program, stored: DType | None) -> Program:
    """Copies each input that a sum of products reads, with padding or as another type than
    *stored*, to a tensor of the program: only these are laid out.
    """
    other = OTHER.get(stored) if stored else None
    inputs = {program.root(t) for t in program.inputs}
    wanted = {
        a.tensor
        for kernel in program.kernels
        if (found := product_of(kernel)) is not None
        for a in found[:1]
        if program.root(a.tensor) in inputs and a.fill is not None
    }
    wanted |= {
        a.tensor
        for kernel in program.kernels
        if (found := product_of(kernel)) is not None
        for a in found[:1]
        if program.root(a.tensor) in inputs and program.tensors[a.tensor].dtype is other
    }
    tensors, copies, names = list(program.tensors), [], {}
    for tensor in sorted(wanted):
        value = tensors[tensor]
        tensors.append(replace(value, name=f"{value.name}, copied"))
        names[tensor] = len(tensors) - 1
        axes = along(*range(len(value.shape)))
        copies.append(
            Kernel(
                "input",
                value.shape,
                (Access(tensor, axes),),
                identity(value.dtype),
                identity(value.dtype),
                Access(names[tensor], axes),
                sums=value.dtype,
            )
        )
    kernels = [
        replace(k, reads=tuple(_named(a, names) for a in k.reads))
        if product_of(k) is not None
        else k
        for k in program.kernels
    ]
    return replace(program, tensors=tuple(tensors), kernels=(*copies, *kernels))


def _named(access: Access, names: dict[int, int]) -> Access:
    return replace(access, tensor=names.get(access.tensor, access.tensor))


def stored_as(program: Program, dtype: DType) -> Program:
    """Stores the 8-bit tensors of the program as *dtype*: values of the other type plus or minus
    128.
    """
    fixed = {program.root(t) for t in (*program.inputs, *program.outputs)} | set(program.constants)
    fixed |= of_routines(program)
    changed = {
        index
        for index, tensor in enumerate(program.tensors)
        if tensor.dtype is OTHER[dtype] and program.root(index) not in fixed
    }
    tensors = tuple(
        replace(t, dtype=dtype) if i in changed else t for i, t in enumerate(program.tensors)
    )
    kernels = [_Stored(changed, dtype).kernel(k) for k in program.kernels]
    return replace(program, tensors=tensors, kernels=tuple(kernels))


class _Stored:
    """Rewrites kernels for *changed* tensors, which are stored as *dtype*."""

    def __init__(self, changed: set[int], dtype: DType) -> None:
        self._changed, self._dtype = changed, dtype
        self._shift = SIGN if dtype is DType.UINT8 else -SIGN

    def kernel(self, kernel: Kernel) -> Kernel:
        changed = self._changed
        reads, extras = self._moved(kernel.reads), self._moved(kernel.extras)
        if (found := product_of(kernel)) is not None:
            dtypes = [
                self._dtype if a.tensor in changed else d
                for a, d in zip(kernel.reads, kernel.body.arguments, strict=True)
            ]
            zeros = [
                z + self._shift if a.tensor in changed else z
                for a, z in zip(kernel.reads, found[2], strict=True)
            ]
            body = product(dtypes[0], dtypes[1], kernel.sums, (zeros[0], zeros[1]))
        else:
            body = self._read(kernel.body, [a.tensor in changed for a in kernel.reads])
        finish = self._read(kernel.finish, [False, *(a.tensor in changed for a in kernel.extras)])
        if kernel.write.tensor in changed:
            finish = self._written(finish)
        return replace(kernel, reads=reads, extras=extras, body=body, finish=finish)

    def _moved(self, accesses: Sequence[Access]) -> tuple[Access, ...]:
        return tuple(
            replace(a, fill=int(a.fill) + self._shift)
            if a.tensor in self._changed and a.fill is not None
            else a
            for a in accesses
        )

    def _read(self, expression: Expression, changed: Sequence[bool]) -> Expression:
        """*expression* of arguments some of which are stored as the other type."""
        if not any(changed):
            return expression
        dtypes = [
            self._dtype if c else d for c, d in zip(changed, expression.arguments, strict=True)
        ]
        scope = Scope(*dtypes)
        values = [
            scope.argument(i).apply("xor", self._sign).cast(OTHER[self._dtype])
            if c
            else scope.argument(i)
            for i, c in enumerate(changed)
        ]
        return scope.finish(scope.inline(expression, *values))

    def _written(self, expression: Expression) -> Expression:
        scope = Scope(*expression.arguments)
        values = [scope.argument(i) for i in range(len(expression.arguments))]
        result = scope.inline(expression, *values)
        return scope.finish(result.cast(self._dtype).apply("xor", self._sign))

    @property
    def _sign(self) -> int:
        """The sign bit as a value of the stored type."""
        return SIGN if self._dtype is DType.UINT8 else -SIGN


__all__ = ["halos", "lay_out", "own_inputs", "stored_as"]
