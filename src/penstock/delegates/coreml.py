"""`CoreMLDelegate`: TensorFlow Lite's Core ML delegate. Experimental until 1.0."""

from __future__ import annotations

import platform
import re
import sys
from typing import Final, Literal

from msgspec import Struct

from penstock.delegates.driver import AnyDevice, checked_choice
from penstock.delegates.kinds import FLOATS, Kind, KindDelegate, shown_type
from penstock.errors import DeviceUnavailable, InputError
from penstock.ir import Operand
from penstock.runtime.discovery import DeviceInfo

EnabledDevices = Literal["neural_engine", "all"]

COREML: Final = Kind("Core ML", (), ("coreml",))
NEURAL_ENGINE: Final = "neural_engine"
LATEST: Final = 0

FIRST_MODELS: Final = {"iPhone": 11, "iPad": 8, "AppleTV": 11}
"""The first model number of devices with an A12 or later (Apple's identifiers count up)."""

OLD_ENGINES: Final = {"iPhone": (10,)}
"""Devices with the A11. Core ML does not give its neural engine to other programs."""

CORE_ML: Final = {2: (10, 14), 3: (10, 15)}
"""The first macOS release with each version of Core ML."""


class CoreMLDelegate(KindDelegate):
    """Runs nodes with float32 and float16 tensors on Core ML.

    - *enabled_devices* "neural_engine", TFLite's default, requires a machine with a neural engine
      that Core ML uses (an A12, an M1 or later); "all" takes any machine with Core ML. Core ML
      itself chooses where it computes.
    - *coreml_version* 2 or 3 requires at least that version; 0 takes the installed one.
    - The delegate takes at most *max_delegated_partitions* subsets (0: all) of at least
      *min_nodes_per_partition* nodes, the largest first.
    - *is_precision_loss_allowed* accepts reduced precision (accuracy class `relaxed`); the neural
      engine computes in float16.
    - *device* is as for `GpuDelegate`.

    Raises `DeviceUnavailable` if there is no such device; the message lists the requirements and
    the devices found. Raises `InputError` for a wrong option.
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
        super().__init__(
            COREML,
            device,
            accuracy="relaxed" if is_precision_loss_allowed else "faithful",
            num_threads=num_threads,
            max_delegated_partitions=max_delegated_partitions,
            min_nodes_per_partition=min_nodes_per_partition,
        )
        if reason := missing(self.info, enabled_devices, coreml_version, this_host()):
            raise DeviceUnavailable(f"{self.info.name}: {reason}")

    def refuses(self, operand: Operand) -> str:
        """Accepts float32 and float16 tensors only."""
        if operand.dtype.value in FLOATS:
            return ""
        return f"is {shown_type(operand)}; Core ML is given float32 and float16 tensors"


class Host(Struct, frozen=True):
    """A machine.

    *system* is "darwin", "ios", "tvos", "linux", ...; *machine* the processor ("arm64"); *model*
    the identifier ("iPhone11,2") if the system reports it; *release* that of macOS as numbers,
    otherwise ().
    """

    system: str
    machine: str
    model: str = ""
    release: tuple[int, ...] = ()


def this_host() -> Host:
    """The machine that this process runs on."""
    system, model = sys.platform, ""
    if system in ("ios", "tvos"):
        model = getattr(platform, "ios_ver", lambda: ("", "", "", False))()[2]
    release = platform.mac_ver()[0] if system == "darwin" else ""
    numbers = tuple(int(n) for n in release.split(".") if n.isdigit())
    return Host(system, platform.machine(), model, numbers)


def neural_engine_missing(host: Host) -> str:
    """Why Core ML has no neural engine on *host*; "" if it has one."""
    if host.system == "darwin":
        if host.machine == "arm64":
            return ""
        return f"a Mac with a processor {host.machine} has no neural engine"
    if host.system not in ("ios", "tvos"):
        return f"there is no neural engine on {host.system}"
    found = re.match(r"([A-Za-z]+?)(\d+),", host.model)
    if found is None or found[1] not in FIRST_MODELS:
        return f"no model {host.model!r} with a neural engine is known"
    family, number = found[1], int(found[2])
    if number in OLD_ENGINES.get(family, ()):
        return (
            f"the neural engine of {host.model} is too old: Core ML uses those of the A12 and later"
        )
    if number < FIRST_MODELS[family]:
        return f"{host.model} is too old to have a neural engine"
    return ""


def core_ml_missing(host: Host, version: int) -> str:
    """Why *host* lacks Core ML *version*; "" if it has it, or the system does not report it."""
    first = CORE_ML[version]
    if host.release and host.release[:2] < first:
        needed = ".".join(map(str, first))
        release = ".".join(map(str, host.release))
        return f"Core ML {version} is there from macOS {needed} on, and this is {release}"
    return ""


def missing(info: DeviceInfo, enabled: str, version: int, host: Host) -> str:
    """The first missing requested feature, or "". *host* does not limit a simulated device."""
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
