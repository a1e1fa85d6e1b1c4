"""The scenarios that NNAPI's VTS has for the allocation of a buffer (MemoryDomainAllocateTest),
under its names.
"""

from __future__ import annotations

from contextlib import closing
from typing import Final

from penstock.errors import InvalidArgument
from penstock.hal import BufferDesc, BufferRole, Device
from penstock.ir import DType, Model, Quantization
from penstock.testing.contract.memory_domains.bench import (
    KINDS,
    ONE,
    SHAPE,
    adding,
    bench,
    carrying,
    prepare,
    refuses,
)
from penstock.testing.contract.promise import Check, refused


def _conflict(device: Device, what: str, model: Model, index: int = 1) -> None:
    """A role of *model* and one of the plain sum are refused together."""
    with bench(device) as on, closing(prepare(device, model)) as other:
        refuses(what, on, [on.input(), (other, "input", index)])
        refuses(what, on, [(other, "input", index), on.output])


def check_allocate_empty_role(device: Device) -> None:
    """MemoryDomainAllocateTest.EmptyRole."""
    with bench(device) as on:
        refuses("no roles", on, [])


def check_allocate_nullptr_prepared_model(device: Device) -> None:
    """MemoryDomainAllocateTest.NullptrPreparedModel."""
    with bench(device) as on:
        with refused("a buffer for no model", InvalidArgument):
            device.allocate(BufferDesc(), [BufferRole(None, "input", 0)])  # type: ignore[arg-type]
        refuses("a null model among others", on, [on.input(), (None, "input", 0)])  # type: ignore[list-item]


def check_allocate_invalid_prepared_model(device: Device) -> None:
    """MemoryDomainAllocateTest.InvalidPreparedModel: one of another device."""

    class Foreign:
        """Of no device of ours."""

        model = adding(*KINDS[0], SHAPE)

    with bench(device) as on:
        refuses("another device's model", on, [(Foreign(), "input", 0)])  # type: ignore[list-item]


def check_allocate_invalid_model_index(device: Device) -> None:
    """MemoryDomainAllocateTest.InvalidModelIndex: a number instead of a model."""
    with bench(device) as on:
        refuses("a number for a model", on, [on.input(), (1, "input", 0)])  # type: ignore[list-item]


def check_allocate_invalid_io_index(device: Device) -> None:
    """MemoryDomainAllocateTest.InvalidIOIndex."""
    with bench(device) as on:
        refuses("input 2 of 2", on, [on.input(2)])
        refuses("output 1 of 1", on, [(on.prepared, "output", 1)])
        refuses("input -1", on, [on.input(-1)])


def check_allocate_invalid_probability(device: Device) -> None:
    """MemoryDomainAllocateTest.InvalidProbability."""
    with bench(device) as on:
        for frequency in (10.0, 0.0, -0.5, float("nan")):
            for kind in ("input", "output"):
                role = BufferRole(on.prepared, kind, 0, frequency)
                with refused(f"a frequency of {frequency}", InvalidArgument):
                    device.allocate(BufferDesc(), [role])


def check_allocate_same_role_specified_twice(device: Device) -> None:
    """MemoryDomainAllocateTest.SameRoleSpecifiedTwice."""
    with bench(device) as on:
        refuses("an input twice", on, [on.input(), on.input()])
        refuses("an output twice", on, [on.output, on.input(), on.output])


def check_allocate_conflict_operand_type(device: Device) -> None:
    """MemoryDomainAllocateTest.ConflictOperandType."""
    _conflict(device, "two element types", carrying(DType.INT32, None, SHAPE))


def check_allocate_conflict_scale(device: Device) -> None:
    """MemoryDomainAllocateTest.ConflictScale."""
    _conflicting_quantization(device, Quantization((0.5,), (0,)))


def check_allocate_conflict_zero_point(device: Device) -> None:
    """MemoryDomainAllocateTest.ConflictZeroPoint."""
    _conflicting_quantization(device, Quantization((1.0,), (7,)))


def _conflicting_quantization(device: Device, other: Quantization) -> None:
    with (
        bench(device) as on,
        closing(prepare(device, carrying(DType.INT8, ONE, SHAPE))) as first,
        closing(prepare(device, carrying(DType.INT8, other, SHAPE))) as second,
    ):
        refuses("two quantisations", on, [(first, "input", 1), (second, "input", 1)])
        refuses("two quantisations", on, [(first, "output", 1), (second, "input", 1)])


def check_allocate_conflict_rank_between_roles(device: Device) -> None:
    """MemoryDomainAllocateTest.ConflictRankBetweenRoles."""
    _conflict(device, "two ranks", adding(*KINDS[0], SHAPE[1:]), 0)


def check_allocate_conflict_dimensions_between_roles(device: Device) -> None:
    """MemoryDomainAllocateTest.ConflictDimensionsBetweenRoles."""
    _conflict(device, "other dimensions", adding(*KINDS[0], (1, 32, 32, 4)), 0)


def check_allocate_conflict_rank_between_role_and_desc(device: Device) -> None:
    """MemoryDomainAllocateTest.ConflictRankBetweenRoleAndDesc."""
    with bench(device) as on:
        refuses("a rank of its own", on, [on.input()], SHAPE[1:])
        refuses("a rank of its own", on, [on.output], (1, *SHAPE))


def check_allocate_conflict_dimensions_between_role_and_desc(device: Device) -> None:
    """MemoryDomainAllocateTest.ConflictDimensionsBetweenRoleAndDesc."""
    with bench(device) as on:
        refuses("dimensions of its own", on, [on.input()], (1, 32, 32, 4))
        refuses("dimensions of its own", on, [on.output], (2, 32, 32, 8))


def check_allocate_conflict_rank_with_scalar_role(device: Device) -> None:
    """MemoryDomainAllocateTest.ConflictRankWithScalarRole."""
    with bench(device) as on, closing(prepare(device, adding(*KINDS[0], ()))) as scalars:
        refuses("a rank for a scalar", on, [(scalars, "input", 0)], (1,))
        refuses("a scalar and a tensor", on, [(scalars, "input", 0), on.input()])


CHECKS: Final[tuple[Check, ...]] = (
    check_allocate_empty_role,
    check_allocate_nullptr_prepared_model,
    check_allocate_invalid_prepared_model,
    check_allocate_invalid_model_index,
    check_allocate_invalid_io_index,
    check_allocate_invalid_probability,
    check_allocate_same_role_specified_twice,
    check_allocate_conflict_operand_type,
    check_allocate_conflict_scale,
    check_allocate_conflict_zero_point,
    check_allocate_conflict_rank_between_roles,
    check_allocate_conflict_dimensions_between_roles,
    check_allocate_conflict_rank_between_role_and_desc,
    check_allocate_conflict_dimensions_between_role_and_desc,
    check_allocate_conflict_rank_with_scalar_role,
)
