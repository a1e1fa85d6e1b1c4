"""`GpuDelegate`: TensorFlow Lite's GPU delegate over whichever driver has a GPU. Experimental until
1.0. | `HexagonDelegate`: TensorFlow Lite's Hexagon delegate over a driver for Qualcomm's DSPs.
Experimental until 1.0. | Which of Apple's machines have a neural engine that other programs may use. | `CoreMLDelegate`: TensorFlow Lite's Core ML delegate over a driver for Core ML. Experimental
until 1.0.
"""

from __future__ import annotations

import enum
import os
import platform
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct

from penstock.delegates.driver import AnyDevice, DriverKernel, Kept
from penstock.delegates.kinds import (
    FLOATS,
    Kind,
    KindDelegate,
    checked_choice,
    checked_count,
    is_quantised,
    shown_type,
)
from penstock.delegates.simple import DelegateKernel
from penstock.errors import DeviceUnavailable, InputError
from penstock.hal import Preference
from penstock.ir import Operand
from penstock.logs import Log
from penstock.runtime.discovery import DeviceInfo

if TYPE_CHECKING:
    from penstock.cache.info import CacheInfo
    from penstock.compilation import Receipt
    from penstock.delegates.api import DelegateNode
    from penstock.delegates.context import DelegateContext, PartitionModel


InferencePreference = Literal["fast_single_answer", "sustained_speed", "balanced"]
InferencePriority = Literal["auto", "max_precision", "min_latency", "min_memory_usage"]

PREFERENCES: Final[Mapping[str, Preference]] = {
    "fast_single_answer": "fast_single_answer",
    "sustained_speed": "sustained_speed",
    "balanced": "fast_single_answer",
}
PRIORITIES: Final = ("auto", "max_precision", "min_latency", "min_memory_usage")


class GpuExperimentalFlags(enum.IntFlag):
    """TFLite's flags. ENABLE_QUANT takes quantised nodes; CL_ONLY and GL_ONLY take a GPU of the
    family "opencl" or "opengl" alone; ENABLE_SERIALIZATION keeps what was compiled in
    *serialization_dir*.
    """

    NONE = 0
    ENABLE_QUANT = 1
    CL_ONLY = 2
    GL_ONLY = 4
    ENABLE_SERIALIZATION = 8


class GpuDelegate(KindDelegate):
    """Gives a GPU the nodes that compute with float32, float16 and quantised 8-bit tensors.

    *is_precision_loss_allowed* True accepts the engine's own arithmetic and reduced precision,
    which is the accuracy class `relaxed`; False asks for `faithful`; None leaves it to the
    priorities: only *inference_priority1* "max_precision" asks for `faithful`. An "auto" leaves a
    place open, and all after it. *inference_preference* "balanced" is "fast_single_answer".
    *experimental_flags* are `GpuExperimentalFlags`. At most *max_delegated_partitions* subsets are
    taken, the largest first; TFLite's default is one, and 0 takes all. *serialization_dir* and
    *model_token* are used with ENABLE_SERIALIZATION. *device* takes that one, by name or as it is;
    None the fastest GPU of every installed driver, those that are left out unless they are named
    too.

    Raises `DeviceUnavailable` where there is no such device, with what was looked for and what was
    found; `InputError` for an option.
    """

    def __init__(
        self,
        is_precision_loss_allowed: bool | None = None,
        inference_preference: InferencePreference = "fast_single_answer",
        inference_priority1: InferencePriority = "max_precision",
        inference_priority2: InferencePriority = "auto",
        inference_priority3: InferencePriority = "auto",
        experimental_flags: int = GpuExperimentalFlags.ENABLE_QUANT,
        max_delegated_partitions: int = 1,
        serialization_dir: str | os.PathLike[str] | None = None,
        model_token: str | bytes | None = None,
        *,
        device: AnyDevice | None = None,
        num_threads: int | None = None,
    ) -> None:
        checked_choice("inference_preference", inference_preference, tuple(PREFERENCES))
        priorities = (inference_priority1, inference_priority2, inference_priority3)
        _check_priorities(priorities)
        self.flags_of_gpu = _flags(experimental_flags)
        reduced = (
            inference_priority1 != "max_precision"
            if is_precision_loss_allowed is None
            else bool(is_precision_loss_allowed)
        )
        keeps = GpuExperimentalFlags.ENABLE_SERIALIZATION in self.flags_of_gpu
        if keeps and serialization_dir is None:
            raise InputError("ENABLE_SERIALIZATION needs a serialization_dir")
        if not keeps and (serialization_dir is not None or model_token is not None):
            raise InputError(
                "serialization_dir and model_token need ENABLE_SERIALIZATION in experimental_flags"
            )
        self._kept = Kept(serialization_dir, model_token, ("serialization_dir", "model_token"))
        most = checked_count("max_delegated_partitions", max_delegated_partitions)
        super().__init__(
            _kind(self.flags_of_gpu),
            device,
            accuracy="relaxed" if reduced else "faithful",
            preference=PREFERENCES[inference_preference],
            num_threads=num_threads,
            max_delegated_partitions=most or None,
        )

    def cache_for(self, part: PartitionModel) -> bool | str | CacheInfo | None:
        """An entry of its own for each subset, in the caller's directory; nothing without one."""
        return self._kept.entry_of(part)

    def tell(self, receipt: Receipt) -> None:
        """Logs why the caller's directory keeps nothing, where it does not."""
        self._kept.tell(receipt)

    def refuses(self, operand: Operand) -> str:
        """Whatever is neither float32, float16 nor quantised 8-bit."""
        if operand.dtype.value in FLOATS:
            return ""
        if not is_quantised(operand):
            return f"is {shown_type(operand)}; a GPU is given float32, float16 and quantised 8-bit tensors"
        if GpuExperimentalFlags.ENABLE_QUANT not in self.flags_of_gpu:
            return (
                f"is {shown_type(operand)}, and experimental_flags is without ENABLE_QUANT, "
                "which takes quantised nodes"
            )
        return ""


def _kind(flags: GpuExperimentalFlags) -> Kind:
    if GpuExperimentalFlags.CL_ONLY in flags:
        return Kind("GPU", ("gpu",), ("opencl",))
    if GpuExperimentalFlags.GL_ONLY in flags:
        return Kind("GPU", ("gpu",), ("opengl",))
    return GPU


def _flags(given: int) -> GpuExperimentalFlags:
    if type(given) not in (int, GpuExperimentalFlags) or not 0 <= given <= ALL_FLAGS:
        raise InputError(f"experimental_flags are GpuExperimentalFlags, not {given!r}")
    flags = GpuExperimentalFlags(given)
    if GpuExperimentalFlags.CL_ONLY in flags and GpuExperimentalFlags.GL_ONLY in flags:
        raise InputError("experimental_flags has CL_ONLY and GL_ONLY, which leave no GPU")
    return flags


def _check_priorities(priorities: tuple[str, ...]) -> None:
    """`InputError` as TFLite's rule has it: the first is given, none twice, and nothing after an
    "auto".
    """
    for number, priority in enumerate(priorities, 1):
        checked_choice(f"inference_priority{number}", priority, PRIORITIES)
    given = [p for p in priorities if p != "auto"]
    if priorities[0] == "auto":
        raise InputError('inference_priority1 is "auto"; only what comes after a priority can be')
    if tuple(given) != priorities[: len(given)]:
        raise InputError("an inference priority follows one that is left open")
    if len(set(given)) != len(given):
        raise InputError(f"an inference priority is given twice: {', '.join(given)}")


GPU: Final = Kind("GPU", ("gpu",))
ALL_FLAGS: Final = 15


log = Log("penstock.delegates.hexagon")

HEXAGON: Final = Kind("Hexagon DSP", ("accelerator",), ("hexagon",), "int8")


class HexagonDelegate(KindDelegate):
    """Gives a Hexagon DSP the nodes that compute with quantised 8-bit tensors. Needs no NNAPI.

    *powersave_level* 0 asks for speed, anything above for `low_power`. *debug_level* above 0 logs
    why each node is not taken; *print_graph_debug* logs the plan of each subset,
    *print_graph_profile* the receipt of each run: TFLite prints them, Penstock logs them at INFO
    (`penstock.delegates.accelerators`). At most *max_delegated_partitions* subsets of at least
    *min_nodes_per_partition* nodes are taken (0: all), the largest first.
    *is_precision_loss_allowed* accepts the DSP's own rounding, which is the accuracy class
    `relaxed`. *device* as for `GpuDelegate`.

    Raises `DeviceUnavailable` where there is no such device, with what was looked for and what was
    found; `InputError` for an option.
    """

    def __init__(
        self,
        debug_level: int = 0,
        powersave_level: int = 0,
        print_graph_profile: bool = False,
        print_graph_debug: bool = False,
        max_delegated_partitions: int = 0,
        min_nodes_per_partition: int = 2,
        *,
        is_precision_loss_allowed: bool = False,
        device: AnyDevice | None = None,
        num_threads: int | None = None,
    ) -> None:
        self.debug_level = checked_count("debug_level", debug_level)
        self.powersave_level = checked_count("powersave_level", powersave_level)
        self.print_graph_profile = bool(print_graph_profile)
        self.print_graph_debug = bool(print_graph_debug)
        most = checked_count("max_delegated_partitions", max_delegated_partitions)
        super().__init__(
            HEXAGON,
            device,
            accuracy="relaxed" if is_precision_loss_allowed else "faithful",
            preference="low_power" if powersave_level else "fast_single_answer",
            num_threads=num_threads,
            max_delegated_partitions=most or None,
            min_nodes_per_partition=checked_count(
                "min_nodes_per_partition", min_nodes_per_partition
            ),
        )

    def refuses(self, operand: Operand) -> str:
        """Whatever is not quantised 8-bit."""
        if is_quantised(operand):
            return ""
        return f"is {shown_type(operand)}; a Hexagon DSP is given quantised 8-bit tensors"

    def initialize(self, context: DelegateContext) -> None:
        """As for every delegate over a device; tells why nodes are not taken, where asked."""
        super().initialize(context)
        if self.debug_level:
            for node, reason in self.reasons.items():
                log.info("%s leaves node %d: %s", self.name, node, reason)

    def create_kernel(self) -> DelegateKernel:
        """A kernel that logs what it was asked to."""
        kernel = LoggingKernel(self)
        self._kernels.append(kernel)
        return kernel


class LoggingKernel(DriverKernel):
    """One subset of nodes, whose plan and receipts are logged."""

    def __init__(self, delegate: HexagonDelegate) -> None:
        super().__init__(delegate)
        self._owner = delegate

    def prepare(self, context: DelegateContext, node: DelegateNode) -> None:
        """Compiles, and logs the plan."""
        super().prepare(context, node)
        if self._owner.print_graph_debug and self.compiled is not None:
            log.info("%s: %s", self._owner.name, self.compiled.plan.show())

    def invoke(self, context: DelegateContext, node: DelegateNode) -> None:
        """Runs, and logs the receipt."""
        super().invoke(context, node)
        if self._owner.print_graph_profile and self.outputs is not None:
            log.info("%s: %s", self._owner.name, self.outputs.receipt.show())


FIRST_MODELS: Final = {"iPhone": 11, "iPad": 8, "AppleTV": 11}
"""The first number in the model identifiers of devices whose processor is an A12 or later (Apple's
identifiers count up).
"""

OLD_ENGINES: Final = {"iPhone": (10,)}
"""Those with the A11, whose neural engine Core ML does not give to other programs."""

CORE_ML: Final = {2: (10, 14), 3: (10, 15)}
"""The first macOS that has each version of Core ML."""


class Host(Struct, frozen=True):
    """A machine: *system* ("darwin", "ios", "tvos", "linux", ...), processor *machine* ("arm64"),
    *model* identifier ("iPhone11,2", where the system tells), and macOS *release* as numbers, ()
    elsewhere.
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
    """Why Core ML has no neural engine there; empty where it has one."""
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
    """Why Core ML *version* is not there; empty where it is, or where the system does not tell."""
    first = CORE_ML[version]
    if host.release and host.release[:2] < first:
        needed = ".".join(map(str, first))
        release = ".".join(map(str, host.release))
        return f"Core ML {version} is there from macOS {needed} on, and this is {release}"
    return ""


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
