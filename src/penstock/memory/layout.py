"""Values side by side in one pool, aligned and padded as the devices that use them prefer (NNAPI
section 6.8).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from msgspec import Struct

from penstock.arguments import check_kind
from penstock.errors import InputError, there_are
from penstock.hal import MemoryPreference
from penstock.ir import DType, NDArray, Operand
from penstock.ir.types import static_shape
from penstock.memory.arena import lay_out
from penstock.memory.pool import MemoryPool

PLAIN = MemoryPreference()
"""What holds where nobody prefers anything: the strictest alignment of a scalar in C, and no
padding.
"""


class Preferring(Protocol):
    """A compiled model, as far as it is needed here."""

    @property
    def inputs(self) -> tuple[Operand, ...]: ...
    @property
    def outputs(self) -> tuple[Operand, ...]: ...
    @property
    def input_memory(self) -> tuple[MemoryPreference, ...]: ...
    @property
    def output_memory(self) -> tuple[MemoryPreference, ...]: ...


class PoolPlan(Struct, frozen=True):
    """One value: *nbytes* bytes from *offset* on, and *padding* more that a driver may overwrite."""

    offset: int
    nbytes: int
    padding: int
    dtype: DType
    shape: tuple[int, ...]


class PoolLayout:
    """Where the values named in `places` lie in a pool of `nbytes` bytes; `views` gives them as
    arrays.

    The pool itself begins at a page, so that an offset is aligned as its address is.
    """

    def __init__(self, places: Mapping[str, PoolPlan], nbytes: int) -> None:
        check_kind(places, (dict, Mapping), "a layout has a mapping of names to PoolPlans")
        self.places: Mapping[str, PoolPlan] = MappingProxyType(dict(places))
        self.nbytes = nbytes

    @classmethod
    def of(
        cls,
        compiled: Preferring,
        inputs: Iterable[str] | None = None,
        outputs: Iterable[str] | None = None,
    ) -> PoolLayout:
        """The layout of these inputs and outputs of a compiled model, None for all of them, by
        name.

        Raises `InputError` for what is no compiled model or no list of names, for a name that is
        not there or comes twice, and for a value whose size is not known before a run.
        """
        if not hasattr(compiled, "input_memory"):
            raise InputError(f"a layout is of a compiled model, not of {type(compiled).__name__}")
        wanted: list[tuple[Operand, MemoryPreference]] = []
        sides = (
            ("input", inputs, compiled.inputs, compiled.input_memory),
            ("output", outputs, compiled.outputs, compiled.output_memory),
        )
        for kind, names, operands, preferences in sides:
            known = {o.name: (o, p) for o, p in zip(operands, preferences, strict=True)}
            if names is not None:
                check_names(f"{kind}s", names)
            chosen = [o.name for o in operands] if names is None else list(names)
            for name in chosen:
                if name not in known:
                    raise InputError(f"no {kind} is named {name!r}; {there_are(list(known))}")
                wanted.append(known[name])
        return cls.for_operands(wanted)

    @classmethod
    def for_operands(cls, wanted: Sequence[tuple[Operand, MemoryPreference]]) -> PoolLayout:
        """The layout of one value for each operand, in order; raises `InputError` as `of` does."""
        names = [operand.name for operand, _ in wanted]
        if len(set(names)) != len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise InputError(f"two values are named {twice!r}; lay them out apart")
        shapes = [_shape(operand) for operand, _ in wanted]
        sizes = [
            math.prod(shape) * operand.dtype.numpy.itemsize
            for shape, (operand, _) in zip(shapes, wanted, strict=True)
        ]
        plans: dict[str, PoolPlan] = {}
        end = 0
        for (operand, preference), shape, nbytes in zip(wanted, shapes, sizes, strict=True):
            ((offset, padding),), end = lay_out([nbytes], preference, end)
            plans[operand.name] = PoolPlan(offset, nbytes, padding, operand.dtype, shape)
        return cls(plans, end)

    def pool(self) -> MemoryPool:
        """A new anonymous pool of this size. Raises `ResourceExhaustedTransient`."""
        return MemoryPool.anonymous(self.nbytes)

    def views(self, pool: MemoryPool) -> dict[str, NDArray]:
        """Name -> its array in *pool*. Raises `InputError` where that is no pool, or too small."""
        if not isinstance(pool, MemoryPool):
            raise InputError(f"views of a layout lie in a MemoryPool, not in {type(pool).__name__}")
        return {
            name: pool.view(plan.dtype.numpy, plan.shape, plan.offset)
            for name, plan in self.places.items()
        }


def strictest(preferences: Iterable[MemoryPreference]) -> MemoryPreference:
    """What satisfies all of them: the greatest alignment and the greatest padding, 16 and 1 at
    least.
    """
    alignment, padding = PLAIN.alignment, PLAIN.padding
    for preference in preferences:
        alignment = max(alignment, preference.alignment)
        padding = max(padding, preference.padding)
    return MemoryPreference(alignment, padding)


def _shape(operand: Operand) -> tuple[int, ...]:
    shape = static_shape(operand.shape)
    if shape is None or operand.dtype is DType.STRING or operand.dtype.bits is None:
        raise InputError(f"{operand.name!r} has no size that is known before a run")
    return shape


def check_names(label: str, names: object) -> None:
    """Raises `InputError` for what the argument *label*, a list of names or positions, cannot be."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        one = f"; for one, [{names!r}]" if isinstance(names, str | int) else ""
        raise InputError(f"{label} takes a list of names or positions, not {names!r}{one}")
