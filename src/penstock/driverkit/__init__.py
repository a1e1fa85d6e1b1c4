"""The kit for drivers: ready-made parts that implement the contract of `penstock.hal`.

The shortest driver is a class with a Python function for each operation:

    class Relu(KernelDevice):
        name, version = "relu", "1"

        @kernel("RELU")
        def relu(self, site, x):
            return np.maximum(x, 0)

`KernelDevice` implements the contract of `penstock.hal`: it answers which operations are supported,
checks and binds memory, reports shapes, stops at a deadline or cancellation, and names the
operation that failed. A driver over an engine starts from `engine.EngineDevice`;
docs/writing-a-driver.md has an example.
"""

from typing import TYPE_CHECKING

from penstock.facade import lazily

if TYPE_CHECKING:
    from penstock.driverkit.kernel_device import Kernel, KernelDevice, PreparedKernels, kernel
    from penstock.driverkit.site import Site

__all__ = ["Kernel", "KernelDevice", "PreparedKernels", "Site", "kernel"]

__getattr__ = lazily(
    __name__,
    {"kernel_device": "Kernel KernelDevice PreparedKernels kernel", "site": "Site"},
)
