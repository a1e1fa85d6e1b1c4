"""The sample driver: a small driver with a cache and device memory, written to be read from top to
bottom (docs/writing-a-driver.md).

It accepts pools only, as NNAPI's drivers do, and maps them by name in every run.
"""

from __future__ import annotations

import numpy as np

from penstock import errors, hal
from penstock.driverkit import KernelDevice, PreparedKernels, Site, kernel
from penstock.driverkit.engine import report_of
from penstock.driverkit.host_buffers import HostBuffers
from penstock.drivers.sample.program import decode, encode
from penstock.ir import Model, NDArray
from penstock.sealed import Seal

__all__ = ["SampleDevice", "create"]


class SampleDevice(HostBuffers, KernelDevice):
    """A device for ADD, MUL, RELU and FULLY_CONNECTED in float32. Used only when the caller names
    it.

    A prepared model is saved in a model file and a data file, sealed by *seal*. Its buffers have
    known sizes.
    """

    name = "sample"
    version = f"1 (numpy {np.__version__})"
    type = hal.DeviceType.CPU
    capabilities = hal.Capabilities(
        performance={"float32": hal.PerformanceInfo(execution_time=1.5, power_usage=1.5)},
        default_performance=None,
        accepts_host_memory=False,
        only_when_named=True,
    )

    def __init__(self, seal: Seal | None = None) -> None:
        self._seal = seal or Seal(self.name, self.version, files=self.cache_files_needed())

    @kernel("ADD")
    def add(self, _: Site, a: NDArray, b: NDArray) -> NDArray:
        return np.add(a, b)

    @kernel("MUL")
    def multiply(self, _: Site, a: NDArray, b: NDArray) -> NDArray:
        return np.multiply(a, b)

    @kernel("RELU")
    def relu(self, _: Site, x: NDArray) -> NDArray:
        return np.maximum(x, np.float32(0))

    @kernel("FULLY_CONNECTED")
    def fully_connected(
        self, site: Site, x: NDArray, weights: NDArray, bias: NDArray | None = None
    ) -> NDArray:
        """Rows of the input times the transposed weights [units, depth], plus the bias [units]."""
        rows = x if site.flag("keep_num_dims") else x.reshape(-1, weights.shape[1])
        product: NDArray = rows @ weights.T
        return product if bias is None else product + bias

    def refuse(self, site: Site) -> str:
        if len(site.outputs) != 1:
            return f"{len(site.outputs)} outputs; one is possible"
        is_plain = site.attributes.get("weights_format", "DEFAULT") == "DEFAULT"
        return "" if is_plain else "shuffled weights are not read"

    def cache_files_needed(self) -> tuple[int, int]:
        return 1, 1

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> PreparedKernels:
        prepared = super().prepare_model(model, config)
        if config.model_cache or config.data_cache:
            prepared.cache_report = self._save(model, config)
        return prepared

    def prepare_model_from_cache(self, config: hal.PrepareConfig) -> PreparedKernels:
        hal.validate_prepare_config(config)
        try:
            loaded = self._seal.load(config)
        except errors.CacheError as error:
            raise errors.GeneralFailure(str(error)) from error
        return super().prepare_model(decode(*loaded.model, *loaded.data), config)

    def _save(self, model: Model, config: hal.PrepareConfig) -> hal.CacheReport:
        """Saves the model. If that fails, the report says so and preparing goes on."""
        program, constants = encode(model)
        return report_of(self._seal.save(config, model=[program], data=[constants]))


def create() -> SampleDevice:
    """The entry point of `penstock.drivers`."""
    return SampleDevice()
