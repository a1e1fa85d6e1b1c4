"""Operations on float16 values, computed in float32 and rounded once.

The reference device does the same for every operation that it has no float16 kernel for.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from penstock.compiler.expression import Scope
from penstock.compiler.legalise.builder import Builder, Operation
from penstock.driverkit.site import Site
from penstock.ir import DType, NDArray, Operand

F16, F32 = DType.FLOAT16, DType.FLOAT32


class WideSite(Site, frozen=True, kw_only=True):
    """A site whose float16 operands are float32. Its constants, of *narrow*, are converted."""

    narrow: Site

    def constant(self, position: int) -> NDArray | None:
        found = self.narrow.constant(position)
        return None if found is None else _wide_array(found)

    def value(self, position: int, what: str) -> NDArray:
        return _wide_array(self.narrow.value(position, what))


class WideOperation(Operation):
    """An operation whose float16 tensors are converted to float32 before it, and back after it."""

    def __init__(self, builder: Builder, site: Site) -> None:
        wide = WideSite(
            site.around,
            site.index,
            site.operation,
            tuple(None if o is None else _wide_operand(o) for o in site.inputs),
            tuple(_wide_operand(o) for o in site.outputs),
            site.hints,
            site.layout,
            narrow=site,
        )
        super().__init__(builder, wide)
        self._narrow = site
        self._targets: dict[int, int] = {}

    @property
    def is_half(self) -> bool:
        return True

    def tensor(self, position: int = 0) -> int:
        """The float32 tensor of input *position*."""
        found = super().tensor(position)
        given = self._narrow.input(position)
        if given.dtype is not F16:
            return found
        shape = self.shape(found)
        if given.is_constant:
            model = self.site.model
            return self.build.constant(F32, shape, lambda: _wide_array(model.constant(given)))
        made = self.build.tensor(F32, shape)
        self._convert(found, made)
        return made

    def target(self, position: int = 0) -> int:
        """The float32 tensor that output *position* is converted from."""
        found = super().target(position)
        if self._narrow.output(position).dtype is not F16:
            return found
        if position not in self._targets:
            self._targets[position] = self.build.tensor(F32, self.shape(found))
        return self._targets[position]

    def finish(self) -> None:
        """Adds the conversions of the results. To be called after the rule."""
        for position, made in self._targets.items():
            self._convert(made, super().target(position))

    def _convert(self, source: int, target: int) -> None:
        dtypes = [self.build.tensors[t].dtype for t in (source, target)]
        scope = Scope(dtypes[0])
        body = scope.finish(scope.argument(0).cast(dtypes[1]))
        self.elementwise("convert", body, [source], target)


def has_halves(site: Site) -> bool:
    """Whether an operand of *site* is float16."""
    return any(o is not None and o.dtype is F16 for o in (*site.inputs, *site.outputs))


def _wide_operand(operand: Operand) -> Operand:
    return replace(operand, dtype=F32) if operand.dtype is F16 else operand


def _wide_array(array: NDArray) -> NDArray:
    return array.astype(np.float32) if array.dtype == np.float16 else array
