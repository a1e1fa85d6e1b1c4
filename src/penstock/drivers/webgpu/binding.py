"""What the kernels of a run are bound to: the run's own memory, or values of device buffers."""

from __future__ import annotations

import math
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from penstock.driverkit.artefact import Port
from penstock.drivers.webgpu.artefact import Manifest
from penstock.drivers.webgpu.calls import Call
from penstock.drivers.webgpu.engine import Gpu
from penstock.drivers.webgpu.values import DeviceValue, words
from penstock.ir import DType

MOST_KEPT: Final = 8
"""Sets of device buffers whose bindings a run keeps. Double-buffered state has two."""

Values: TypeAlias = Mapping[int, DeviceValue]
"""Values of device buffers, by the places of the inputs and outputs in the memory of runs."""


def readers_of(manifest: Manifest) -> dict[int, list[int]]:
    """The kernels that are bound to each input and output, by its place in the memory of runs.

    There is no entry for a value without bytes, and none for a place that some kernel is bound to
    together with others: no device buffer can stand for it.
    """
    layout, ports = manifest.layout, manifest.ports
    computed = (p for p, i in zip(ports.outputs, ports.forwards, strict=True) if i < 0)
    sizes = dict[int, int]()
    places, every = (*layout.inputs, *layout.outputs), (*ports.inputs, *computed)
    for place, port in zip(places, every, strict=False):
        sizes[place] = max(sizes.get(place, 0), words(_nbytes(port)))
    readers: dict[int, list[int]] = {place: [] for place, size in sizes.items() if size}
    for number, call in enumerate(manifest.calls):
        for binding in call.bindings:
            if binding.buffer != "memory":
                continue
            start, end = binding.offset, binding.offset + binding.size
            for place in [p for p in readers if p < end and start < p + sizes[p]]:
                if start == place and end <= place + sizes[place]:
                    readers[place].append(number)
                else:
                    del readers[place]
    return readers


class Bindings:
    """The bind groups of the kernels of one run at a time."""

    def __init__(
        self, gpu: Gpu, layouts: Sequence[Any], calls: Sequence[Call], buffers: Mapping[str, Any]
    ) -> None:
        """*layouts* are those of the calls' groups."""
        self._gpu, self._layouts, self._calls, self._buffers = gpu, layouts, calls, buffers
        self._own = [self._group(at, {}) for at in range(len(calls))]
        self._kept = OrderedDict[tuple[int, ...], tuple[list[Any], list[Any]]]()

    def groups(self, values: Values, readers: Mapping[int, Sequence[int]]) -> list[Any]:
        """The bind groups, with *values* in place of the memory that *readers* are bound to."""
        if not values:
            return self._own
        key = tuple(x for place, value in values.items() for x in (place, id(value)))
        if (kept := self._kept.get(key)) is None:
            groups = list(self._own)
            for at in {number for place in values for number in readers[place]}:
                groups[at] = self._group(at, values)
            # A value that is freed must not be kept in memory by bindings, and frees its number.
            watched = [weakref.ref(value, self._dropping(key)) for value in values.values()]
            kept = self._kept[key] = groups, watched
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return kept[0]

    def _dropping(self, key: tuple[int, ...]) -> Callable[[object], None]:
        """A function that forgets the bindings of *key*."""
        owner = weakref.ref(self)

        def drop(_: object) -> None:
            if (bindings := owner()) is not None:
                bindings._kept.pop(key, None)  # noqa: SLF001  # its own

        return drop

    def _group(self, at: int, values: Values) -> Any:
        entries = []
        for number, b in enumerate(self._calls[at].bindings):
            value = values.get(b.offset) if b.buffer == "memory" else None
            resource = (
                {"buffer": self._buffers[b.buffer], "offset": b.offset, "size": b.size}
                if value is None
                else {"buffer": value.buffer, "offset": 0, "size": b.size}
            )
            entries.append({"binding": number, "resource": resource})
        return self._gpu.device.create_bind_group(layout=self._layouts[at], entries=entries)


def _nbytes(port: Port) -> int:
    return math.prod(port.shape) * DType(port.dtype).numpy.itemsize
