"""Devices made of kernels: a Python function for each operation, and nothing else to write.

    class Relu(KernelDevice):
        name, version = "relu", "1"

        @kernel("RELU")
        def relu(self, site, x):
            return np.maximum(x, 0)

The base class answers what is supported and why not, checks what comes in and goes out, binds
memory of every kind, reports shapes, stops when it is told to and says which operation failed. It
is the shortest way to a driver that keeps every promise of `penstock.hal`; one that compiles whole
models implements `penstock.hal.Device` itself.
"""

from penstock.kernels.device import KernelDevice, PreparedKernels
from penstock.kernels.site import Kernel, Site, kernel

__all__ = ["Kernel", "KernelDevice", "PreparedKernels", "Site", "kernel"]
