"""The layout pass: decides which values of a subgraph are channels first, before nodes are made.

TFLite has channels last (NHWC; NWC for sequences). Engines convolve channels first (NCHW, NCW). The
pass goes over the operations once. A rule's policy chooses the layout in which the operation reads
each operand and makes each result. The pass records the layouts in which every value exists. A
TRANSPOSE is needed only if an operation reads a value in a layout that does not exist yet.

A rule's emitter reads the decision from `Site.layout` and never looks at its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

from msgspec.structs import replace

from penstock.driverkit.checks import reduced_axes
from penstock.driverkit.site import Layout, Site
from penstock.interrupts import polled

TO_FIRST: Final = {4: (0, 3, 1, 2), 3: (0, 2, 1)}
"""By rank, the permutation from channels last to channels first."""

TO_LAST: Final = {4: (0, 2, 3, 1), 3: (0, 2, 1)}
"""By rank, the permutation from channels first to channels last."""

FIRST_AXIS: Final = (0, 2, 3, 1)
"""The index in NCHW of each axis of NHWC."""


class Values:
    """The values that exist at one point of the pass, and their layouts.

    *real*: the engine computes quantised layers in real numbers. If it is False, the engine has
    integer kernels, which read channels last.
    """

    def __init__(self, *, real: bool = True) -> None:
        self.real = real
        self._first: set[int] = set()
        self._last: set[int] = set()

    def is_first(self, index: int) -> bool:
        """Whether operand *index* exists channels first only."""
        return index in self._first and index not in self._last

    def add(self, index: int, *, first: bool) -> None:
        """Records that operand *index* exists in this layout from now on."""
        (self._first if first else self._last).add(index)


Policy: TypeAlias = Callable[[Site, Values], Layout]
"""Chooses the layout of one operation."""


def lay_out(
    sites: Iterable[Site], policy_of: Callable[[Site], Policy], *, real: bool = True
) -> list[Site]:
    """All operations of a subgraph (*sites*, in order), each with its layout."""
    values, found = Values(real=real), []
    for site in polled(sites):
        layout = policy_of(site)(site, values)
        for index, first in zip(site.input_indexes, layout.inputs, strict=True):
            values.add(index, first=first)
        for index, first in zip(site.output_indexes, layout.outputs, strict=True):
            values.add(index, first=first)
        found.append(replace(site, layout=layout))
    return found


def layout_of(
    site: Site, first: bool, inputs: Sequence[int] | None = None, *, outputs: bool | None = None
) -> Layout:
    """A layout that computes channels *first*, or channels last.

    *inputs* are the positions that the operation then reads channels first (None: all). *outputs*
    says whether the results are channels first, if that differs from *first*.
    """
    chosen = range(len(site.inputs)) if inputs is None else inputs
    return Layout(
        first,
        tuple(first and at in chosen for at in range(len(site.inputs))),
        (first if outputs is None else outputs,) * len(site.outputs),
    )


def channels_last(site: Site, _: Values) -> Layout:
    """The policy of an operation that is computed channels last."""
    return layout_of(site, False)


def channels_first(site: Site, _: Values) -> Layout:
    """The policy of an operation on an image at input 0 that is computed channels first."""
    return layout_of(site, True, [0])


def first_if_real(site: Site, values: Values) -> Layout:
    """As `channels_first`. Quantised data stays channels last if the engine has integer kernels."""
    return layout_of(site, values.real or not site.is_quantized, [0])


def follows(site: Site, values: Values) -> Layout:
    """The policy of an operation that keeps the layout of the image at input 0."""
    return layout_of(site, _is_image(site, values), [0])


def follows_any(site: Site, values: Values) -> Layout:
    """As `follows`, also for a sequence at input 0."""
    return layout_of(site, values.is_first(site.input_indexes[0]), [0])


def follows_last_input(site: Site, values: Values) -> Layout:
    """As `follows`, for the image at the last input."""
    position = len(site.inputs) - 1
    return layout_of(site, _is_image(site, values, position), [position])


def broadcasts(site: Site, values: Values) -> Layout:
    """The policy of an operation whose inputs broadcast.

    It is computed channels first if one image is channels first and all other inputs are scalars,
    images, or constants of a lower rank. The rule itself lays out such constants.
    """
    ranks = [len(site.shape(p)) for p in range(len(site.inputs))]
    is_first = any(_is_image(site, values, p) for p in range(len(ranks))) and all(
        site.input(p).is_constant or rank in {0, 4} for p, rank in enumerate(ranks)
    )
    return layout_of(site, is_first, [p for p, rank in enumerate(ranks) if rank == 4])


def joins(site: Site, values: Values) -> Layout:
    """The policy of a join of images: channels first if one of them is channels first."""
    return layout_of(site, any(_is_image(site, values, p) for p in range(len(site.inputs))))


def reduces(site: Site, values: Values) -> Layout:
    """The policy of a reduction of input 0.

    If both height and width are reduced, NHWC and NCHW are the same. Such a result counts as
    channels last.
    """
    keep = site.attributes.flag("keep_dims")
    is_first = _is_image(site, values) and (keep or reduced_axes(site) == [1, 2])
    return layout_of(site, is_first, [0], outputs=is_first and keep)


def transposes(site: Site, values: Values, order: Sequence[int], *, free: bool) -> Layout:
    """The layout of a TRANSPOSE by *order*. *free* says that no node is needed for it.

    If it permutes to channels first and the value already exists so, that value is the result. If
    it permutes to channels last, the result is the input seen as channels first (`is_renamed`).
    """
    rank = len(order)
    if free and tuple(order) == TO_FIRST.get(rank) and values.is_first(site.input_indexes[0]):
        return layout_of(site, True, [0], outputs=False)
    if free and tuple(order) == TO_LAST.get(rank):
        return layout_of(site, False, outputs=True)
    return channels_last(site, values)


def is_renamed(site: Site) -> bool:
    """Whether the result of a TRANSPOSE is its input, seen in the other layout."""
    return site.layout.inputs[0] != site.layout.outputs[0]


def _is_image(site: Site, values: Values, position: int = 0) -> bool:
    operand = site.inputs[position]
    is_image = operand is not None and len(operand.shape or ()) == 4
    return is_image and values.is_first(site.input_indexes[position])


def computed_axis(site: Site, axis: int) -> int:
    """The index of *axis* of NHWC in the layout that the operation computes in."""
    return FIRST_AXIS[axis] if site.first else axis


def in_computed_order(site: Site, sizes: Sequence[int]) -> list[int]:
    """*sizes* of the axes of NHWC, in the axis order that the operation computes in."""
    return [sizes[axis] for axis in TO_FIRST[4]] if site.first else list(sizes)


V = TypeVar("V")


class LaidOutGraph(Generic[V]):
    """The values of an engine's graph by operand, each in one layout or in both.

    A subclass makes the nodes: `transpose`, `reshape`, and `absent`.
    """

    def __init__(self) -> None:
        self._first: dict[int, V] = {}
        self._last: dict[int, V] = {}

    def transpose(self, value: V, order: Sequence[int]) -> V:
        """*value* with its dimensions in *order*."""
        raise NotImplementedError

    def reshape(self, value: V, shape: Sequence[int]) -> V:
        """*value* in another *shape*."""
        raise NotImplementedError

    def absent(self, index: int, *, first: bool) -> V:
        """The value of an operand *index* that no operation computes: a constant."""
        raise NotImplementedError

    def relaid(self, value: V, index: int, *, first: bool) -> V:
        """*value* of operand *index* in the other layout: channels *first*, or last."""
        return self.transpose(value, (TO_FIRST if first else TO_LAST)[4])

    def get(self, site: Site, position: int = 0) -> V:
        """The value of input *position*, in the layout in which *site* reads it."""
        return self.read(site.input_indexes[position], first=site.layout.inputs[position])

    def read(self, index: int, *, first: bool = False) -> V:
        """The value of operand *index*, transposed if it does not exist in this layout."""
        have, other = (self._first, self._last) if first else (self._last, self._first)
        if index not in have:
            if index in other:
                have[index] = self.relaid(other[index], index, first=first)
            else:
                have[index] = self.absent(index, first=first)
        return have[index]

    def put(self, site: Site, value: V, output: int = 0) -> None:
        """Registers *value* as an output of *site*, in the layout that *site* produces."""
        self.put_at(site.output_indexes[output], value, first=site.layout.outputs[output])

    def put_at(self, index: int, value: V, *, first: bool = False) -> None:
        """Registers *value* as operand *index*."""
        (self._first if first else self._last)[index] = value

    def holds(self, index: int) -> V | None:
        """The value of operand *index* in a layout that exists; None if it is not computed yet."""
        return self._last.get(index, self._first.get(index))

    def broadcast(self, site: Site, position: int, value: V) -> V:
        """*value* of input *position* for broadcasting: a constant's dimensions are NHWC's last."""
        rank = len(site.shape(position))
        if not site.first or site.layout.inputs[position] or not rank:
            return value
        shape = (*(1,) * (4 - rank), *site.shape(position))
        if shape[:3] == (1, 1, 1):
            return self.reshape(value, in_computed_order(site, shape))
        return self.transpose(self.reshape(value, shape), TO_FIRST[4])
