from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, SupportsIndex, overload

import numpy as np
from hypothesis import given, strategies as st

from penstock.drivers.xnnpack.engine import Kernels
from penstock.drivers.xnnpack.rules.classes import Classes
from penstock.drivers.xnnpack.segments import HEAVY, grouped, make_segments
from penstock.ir import Attributes, DType, ModelBuilder, Operation

F32, SHAPE = DType.FLOAT32, (1, 4)
EITHER = Classes(builtin="exact", xnnpack="exact")
PLAIN = Classes(builtin="exact", xnnpack=None)


def test_group_takes_every_ready_operation() -> None:
    b = ModelBuilder()
    x = b.input(F32, SHAPE, "x")
    w = b.constant(np.eye(4, dtype=np.float32), "w")
    (first,) = b.operation("FULLY_CONNECTED", [x, w, None], [(F32, SHAPE)])
    (plain,) = b.operation("SIN", [first], [(F32, SHAPE)])
    (second,) = b.operation("FULLY_CONNECTED", [first, w, None], [(F32, SHAPE)])
    (after,) = b.operation("ADD", [plain, second], [(F32, SHAPE)])
    third = b.operation("FULLY_CONNECTED", [after, w, None], [(F32, SHAPE)])
    segments = make_segments(b.build(third), [EITHER, PLAIN, EITHER, EITHER, EITHER], "faithful")
    assert [(s.part.kernels, s.part.operations) for s in segments] == [
        ("xnnpack", (0, 2)),
        ("builtin", (1, 3)),
        ("xnnpack", (4,)),
    ]


ALLOWED: Final[tuple[list[Kernels], ...]] = (
    ["xnnpack"],
    ["builtin"],
    ["xnnpack", "builtin"],
    ["builtin", "xnnpack"],
)


def one_after_another(
    operations: Sequence[Operation], pending: Sequence[int], allowed: Sequence[list[Kernels]]
) -> Iterator[tuple[Kernels, list[int]]]:
    """What `grouped` gives, by looking at all operations for each group."""
    missing = {i for at in pending for i in operations[at].outputs}
    while pending:
        kernels, members = allowed[pending[0]][0], list[int]()
        for at in pending:
            stays = operations[at].type not in HEAVY and kernels in allowed[at]
            if (stays or kernels == allowed[at][0]) and missing.isdisjoint(operations[at].inputs):
                members.append(at)
                missing.difference_update(operations[at].outputs)
        yield kernels, members
        pending = [at for at in pending if at not in members]


def operation(at: int, kind: str, makers: Sequence[int]) -> Operation:
    """Operand 0 is given, operand n + 1 what operation n makes."""
    return Operation(kind, tuple(makers), (at + 1,), Attributes())


@given(st.data())
def test_groups_equal_those_of_a_search_for_each_group(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 24))
    operations = [
        operation(
            at,
            data.draw(st.sampled_from(["ADD", "CONV_2D"])),
            data.draw(st.lists(st.integers(0, at), min_size=1, max_size=3)),
        )
        for at in range(count)
    ]
    allowed = [data.draw(st.sampled_from(ALLOWED)) for _ in range(count)]
    left_out = data.draw(st.sets(st.integers(0, count - 1)))
    pending = [at for at in range(count) if at not in left_out]
    found = list(grouped(operations, pending, allowed))
    assert found == list(one_after_another(operations, pending, allowed))


class Counted(list[Operation]):
    """Counts how often an operation is looked at."""

    looks = 0

    @overload
    def __getitem__(self, at: SupportsIndex) -> Operation: ...
    @overload
    def __getitem__(self, at: slice) -> list[Operation]: ...
    def __getitem__(self, at: SupportsIndex | slice) -> Operation | list[Operation]:
        self.looks += 1
        return super().__getitem__(at)


def test_grouping_takes_linear_time_for_many_groups() -> None:
    count = 1000
    allowed: list[list[Kernels]] = [ALLOWED[at % 2] for at in range(count)]
    chain = Counted(operation(at, "CONV_2D", [at]) for at in range(count))
    apart = Counted(operation(at, "CONV_2D", [0]) for at in range(count))
    assert len(list(grouped(chain, range(count), allowed))) == count
    assert len(list(grouped(apart, range(count), allowed))) == 2
    assert chain.looks == apart.looks
