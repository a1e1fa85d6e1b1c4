"""`CoreMLDelegate`: TensorFlow Lite's Core ML delegate over a driver for Core ML. Experimental
until 1.0.
"""

from __future__ import annotations

from typing import Final, Literal

from penstock.delegates.apple import (
    CORE_ML,
    Host,
    core_ml_missing,
    neural_engine_missing,
    this_host,
)
from penstock.delegates.driver import AnyDevice
from penstock.delegates.kinds import (
    FLOATS,
    Kind,
    KindDelegate,
    checked_choice,
    checked_count,
    shown_type,
)
from penstock.errors import DeviceUnavailable, InputError
from penstock.ir import Operand
from penstock.runtime.discovery import DeviceInfo

EnabledDevices = Literal["neural_engine", "all"]

COREML: Final = Kind("Core ML", (), ("coreml",))
NEURAL_ENGINE: Final = "neural_engine"
LATEST: Final = 0


class CoreMLDelegate(KindDelegate):
    """Gives Core ML the nodes that compute with float32 and float16 tensors.

    *enabled_devices* "neural_engine", TFLite's default, asks for a machine with a neural engine
    that Core ML uses (an A12, an M1 or later) and is refused with the reason elsewhere; "all" takes
    any machine with Core ML. It does not choose where Core ML computes: that is Core ML's.
    *coreml_version* 2 or 3 asks for a system that has that version at least; 0 takes what is there.
    At most *max_delegated_partitions* subsets of at least *min_nodes_per_partition* nodes are taken
    (0: all), the largest first. *is_precision_loss_allowed* accepts reduced precision, which is the
    accuracy class `relaxed`; the neural engine computes in float16. *device* as for `GpuDelegate`.

    Raises `DeviceUnavailable` where there is no such device, with what was looked for and what was
    found; `InputError` for an option.
    """

    def __init__(
        self,
        enabled_devices: EnabledDevices = "neural_engine",
        coreml_version: int = LATEST,
        max_delegated_partitions: int = 0,
        min_nodes_per_partition: int = 2,
        *,
        is_precision_loss_allowed: bool = False,
        device: AnyDevice | None = None,
        num_threads: int | None = None,
    ) -> None:
        checked_choice("enabled_devices", enabled_devices, ("neural_engine", "all"))
        if type(coreml_version) is not int or coreml_version not in (LATEST, *CORE_ML):
            known = ", ".join(map(str, (LATEST, *CORE_ML)))
            raise InputError(f"coreml_version {coreml_version!r} is not one of {known}")
        most = checked_count("max_delegated_partitions", max_delegated_partitions)
        super().__init__(
            COREML,
            device,
            accuracy="relaxed" if is_precision_loss_allowed else "faithful",
            num_threads=num_threads,
            max_delegated_partitions=most or None,
            min_nodes_per_partition=checked_count(
                "min_nodes_per_partition", min_nodes_per_partition
            ),
        )
        if reason := missing(self.info, enabled_devices, coreml_version, this_host()):
            raise DeviceUnavailable(f"{self.info.name}: {reason}")

    def refuses(self, operand: Operand) -> str:
        """Whatever is no float."""
        if operand.dtype.value in FLOATS:
            return ""
        return f"is {shown_type(operand)}; Core ML is given float32 and float16 tensors"


def missing(info: DeviceInfo, enabled: str, version: int, host: Host) -> str:
    """What the device lacks of what was asked for; empty where it lacks nothing. A double says
    itself what it has.
    """
    real = not info.capabilities.simulated
    if real and version != LATEST and (reason := core_ml_missing(host, version)):
        return reason
    if enabled == "all":
        return ""
    if NEURAL_ENGINE not in info.capabilities.families:
        families = ", ".join(info.capabilities.families)
        return (
            f"no neural engine: looked for the family {NEURAL_ENGINE}, found {families}; "
            'enabled_devices="all" does without'
        )
    reason = neural_engine_missing(host) if real else ""
    return reason and f'{reason}; enabled_devices="all" does without'
