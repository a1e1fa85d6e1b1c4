"""Runs a program on Penstock with a delegate: python delegated.py KIND PROGRAM [ARGS].

KIND is `driver`, a delegate that takes all that the reference device supports, `alternating`, one
that takes every other node of that, `nnapi`, or `gpu`, over a double of one. A program whose
delegate took nothing fails.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable

from penstock import delegates, tflite
from penstock.hal import DeviceType
from penstock.runtime.discovery import manager
from penstock.testing.doubles import SimulatedDevice


class Alternating(delegates.DriverDelegate):
    """Takes every other node: as many subgraphs as a network can be cut into."""

    turn = False

    def is_node_supported(
        self,
        registration: delegates.Registration,
        node: delegates.DelegateNode,
        context: delegates.DelegateContext,
    ) -> bool:
        self.turn = not self.turn
        return self.turn and super().is_node_supported(registration, node, context)


def over_a_gpu(name: str) -> delegates.GpuDelegate:
    """What a GPU would take, computed by the device *name*."""
    device = manager.by_name(name)
    assert device is not None
    double = SimulatedDevice(device, "gpu", DeviceType.GPU)
    return delegates.GpuDelegate(max_delegated_partitions=0, device=double)


KINDS: dict[str, Callable[[str], delegates.DriverDelegate]] = {
    "driver": delegates.DriverDelegate,
    "alternating": Alternating,
    "nnapi": delegates.NnapiDelegate,
    "gpu": over_a_gpu,
}

if __name__ == "__main__":
    delegate = KINDS[sys.argv[1]]("reference")
    create = delegate.create_kernel
    made: list[delegates.DelegateKernel] = []

    def count() -> delegates.DelegateKernel:
        made.append(create())
        return made[-1]

    delegate.create_kernel = count  # type: ignore[method-assign]  # to count
    constructor = tflite.Interpreter.__init__
    arguments = constructor.__code__.co_varnames[1:]
    defaults = list(constructor.__defaults__ or ())
    defaults[arguments.index("experimental_delegates")] = [delegate]
    constructor.__defaults__ = tuple(defaults)
    tflite.install_aliases()
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")
    if not made:
        sys.exit("the delegate took nothing")
