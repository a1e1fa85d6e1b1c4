"""Lays tensors out for a target: unsigned 8-bit data, and padding that is stored around a tensor.

Both are rewritings of a program into a program: a tensor of another type, or a larger one whose
border has kernels of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from penstock.compiler.columns import by_columns
from penstock.compiler.expression import Expression, Number, Scope, identity
from penstock.compiler.fold import fold_unused
from penstock.compiler.interpreter import product_of
from penstock.compiler.legalise.products import product
from penstock.compiler.program import Access, Kernel, Position, Program, Tensor, along
from penstock.compiler.rewriting import Uses, rebuilt
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


def halos(program: Program) -> Program:
    """Stores the padding that sums of products read around the tensor; a tensor that cannot be
    larger is copied first.
    """
    uses = Uses(program)
    fixed = {program.root(t) for t in (*program.inputs, *program.outputs)}
    fixed.update(program.constants)
    wanted: dict[int, list[tuple[int, Access]]] = {}
    for index, kernel in enumerate(program.kernels):
        found = product_of(kernel)
        if found is not None and found[0].fill is not None:
            wanted.setdefault(found[0].tensor, []).append((index, found[0]))
    tensors, kernels = list(program.tensors), list(program.kernels)
    before: dict[int, list[Kernel]] = {}
    for tensor, readers in wanted.items():
        fills = {a.fill for _, a in readers}
        low, high = _border(program, readers)
        free = tensor not in program.aliases and tensor not in uses.aliased and tensor not in fixed
        free = free and not _read_otherwise(program, tensor)
        if free and len(fills) == 1:
            _enlarge(tensors, kernels, tensor, low, high)
            first = min(uses.writers[tensor])
            before.setdefault(first, []).extend(
                _fills(tensors[tensor], tensor, low, high, fills.pop() or 0)
            )
            continue
        for index, access in readers:
            low, high = _border(program, [(index, access)])
            copy = _copied(tensors, tensor, low, high, access.fill or 0)
            before.setdefault(index, []).append(copy)
            moved = _shifted(replace(access, tensor=copy.write.tensor, fill=None), low)
            kernels[index] = replace(kernels[index], reads=(moved, *kernels[index].reads[1:]))
    ordered = [k for i, kernel in enumerate(kernels) for k in (*before.get(i, ()), kernel)]
    return rebuilt(replace(program, tensors=tuple(tensors)), ordered)


def _read_otherwise(program: Program, tensor: int) -> bool:
    """Whether *tensor* must keep its size: a kernel that is no sum of products reads beyond it, and
    would read the border; or a kernel reads it through a table of positions.
    """
    return any(
        access.tensor == tensor
        and (
            any(p.through is not None for p in access.axes)
            or (access.fill is not None and (number or product_of(kernel) is None))
        )
        for kernel in program.kernels
        for number, access in enumerate(kernel.accesses)
    )


def _border(program: Program, readers: Sequence[tuple[int, Access]]) -> tuple[list[int], list[int]]:
    """How far reads go beyond each axis, before and behind."""
    shape = program.tensors[readers[0][1].tensor].shape
    low, high = [0] * len(shape), [0] * len(shape)
    for index, access in readers:
        sizes = program.kernels[index].sizes
        for axis, position in enumerate(access.axes):
            least, most = position.span(sizes)
            low[axis] = max(low[axis], -least)
            high[axis] = max(high[axis], most - shape[axis] + 1)
    return low, high


def _shifted(access: Access, low: Sequence[int]) -> Access:
    axes = tuple(
        replace(p, offset=p.offset + before) for p, before in zip(access.axes, low, strict=True)
    )
    return replace(access, axes=axes)


def _enlarge(
    tensors: list[Tensor], kernels: list[Kernel], tensor: int, low: list[int], high: list[int]
) -> None:
    """Gives *tensor* a border: every access of it moves by the border before it."""
    shape = tensors[tensor].shape
    sizes = tuple(a + s + b for a, s, b in zip(low, shape, high, strict=True))
    tensors[tensor] = replace(tensors[tensor], shape=sizes)

    def moved(access: Access, kernel: Kernel) -> Access:
        if access.tensor != tensor:
            return access
        found = _shifted(access, low)
        is_product = product_of(kernel) is not None and access == kernel.reads[0]
        return replace(found, fill=None) if is_product else found

    for index, kernel in enumerate(kernels):
        if tensor not in {*(a.tensor for a in kernel.accesses), kernel.write.tensor}:
            continue
        kernels[index] = replace(
            kernel,
            reads=tuple(moved(a, kernel) for a in kernel.reads),
            extras=tuple(moved(a, kernel) for a in kernel.extras),
            write=moved(kernel.write, kernel),
        )


def _fills(
    tensor: Tensor, number: int, low: Sequence[int], high: Sequence[int], value: Number
) -> list[Kernel]:
    """Kernels that write *value* into the border, each element once."""
    scope = Scope()
    body = scope.finish(scope.constant(value, tensor.dtype))
    made: list[Kernel] = []
    begin, end = [0] * len(tensor.shape), list(tensor.shape)
    for axis, (before, behind) in enumerate(zip(low, high, strict=True)):
        size = tensor.shape[axis]
        for start, stop in ((0, before), (size - behind, size)):
            if start < stop:
                first, last = list(begin), list(end)
                first[axis], last[axis] = start, stop
                made.append(_slab(tensor, number, first, last, body))
        begin[axis], end[axis] = before, size - behind
    return made


def _slab(
    tensor: Tensor, number: int, first: Sequence[int], last: Sequence[int], body: Expression
) -> Kernel:
    loops = tuple(b - a for a, b in zip(first, last, strict=True))
    axes = tuple(Position(a, ((loop, 1),)) for loop, a in enumerate(first))
    return Kernel(
        "border", loops, (), body, identity(tensor.dtype), Access(number, axes), sums=tensor.dtype
    )


def _copied(
    tensors: list[Tensor], tensor: int, low: Sequence[int], high: Sequence[int], fill: Number
) -> Kernel:
    value = tensors[tensor]
    shape = tuple(a + s + b for a, s, b in zip(low, value.shape, high, strict=True))
    tensors.append(Tensor(value.dtype, shape, f"{value.name}, padded"))
    read = tuple(Position(-a, ((loop, 1),)) for loop, a in enumerate(low))
    return Kernel(
        "padding", shape, (Access(tensor, read, fill),), identity(value.dtype),
        identity(value.dtype), Access(len(tensors) - 1, along(*range(len(shape)))),
        sums=value.dtype,
    )  # fmt: skip


__all__ = ["halos", "lay_out", "own_inputs", "stored_as"]
