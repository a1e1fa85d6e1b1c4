"""Aliases of the same shape are removed: kernels around them are fused, and results stay."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from penstock.compiler import interpreter
from penstock.compiler.aliases import fold_aliases
from penstock.compiler.checks import check
from penstock.compiler.expression import identity
from penstock.compiler.fold import fold
from penstock.compiler.fuse import fuse
from penstock.compiler.program import Access, Position, Program
from penstock.ir import DType
from tests.unit.compiler.building import Builder

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def chain(shape: tuple[int, ...]) -> Program:
    """neg, an alias of *shape*, abs."""
    build = Builder()
    x = build.tensor((2, 3))
    negative = build.unary("neg", x)
    alias = build.tensor(shape)
    build.aliases[alias] = negative
    return build.program([x], [build.unary("abs", alias)])


def test_kernels_are_fused_across_an_alias_of_the_same_shape() -> None:
    program = chain((2, 3))
    folded = fold(program)
    check(folded)
    assert folded.aliases == {}
    assert [k.name for k in fuse(folded).kernels] == ["neg+abs"]
    np.testing.assert_array_equal(interpreter.run(fuse(folded), [X])[0], X)


def test_an_alias_of_another_shape_stays() -> None:
    program = chain((3, 2))
    assert fold_aliases(program) is program
    assert len(fuse(fold(program)).kernels) == 2


def test_outputs_positions_and_other_aliases_follow() -> None:
    build = Builder()
    x, order = build.tensor((4,)), build.tensor((2,), DType.INT32)
    same, flat, column = build.tensor((4,)), build.tensor((4,)), build.tensor((4, 1))
    places = build.tensor((2,), DType.INT32)
    negative = build.unary("neg", x)
    build.aliases |= {same: negative, flat: same, column: flat, places: order}
    picked = build.tensor((2,))
    read = Access(flat, (Position(0, ((0, 1),), places),))
    build.kernel("pick", [read], identity(DType.FLOAT32), picked)
    program = build.program([x, order], [same, column, picked])
    check(program)
    folded = fold_aliases(program)
    check(folded)
    assert folded.outputs == (negative, column, picked)
    assert folded.aliases == {column: negative}
    assert folded.kernels[1].reads == (Access(negative, (Position(0, ((0, 1),), order),)),)
    given = [X.reshape(-1)[:4], np.array([2, 0], np.int32)]
    for one, other in zip(
        interpreter.run(folded, given), interpreter.run(program, given), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_the_tensor_takes_the_name_of_its_alias() -> None:
    build = Builder()
    x = build.tensor((2, 3))
    negative = build.unary("neg", x)
    alias = build.tensor((2, 3))
    build.aliases[alias] = negative
    program = build.program([x], [alias])
    tensors = list(program.tensors)
    for number, name in ((negative, ""), (alias, "result")):
        tensors[number] = replace(tensors[number], name=name)
    folded = fold_aliases(replace(program, tensors=tuple(tensors)))
    assert folded.tensors[negative].name == "result"
