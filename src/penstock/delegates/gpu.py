"""`GpuDelegate`: TensorFlow Lite's GPU delegate over any GPU's driver. Experimental until 1.0."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from typing import Final, Literal

from msgspec.structs import replace

from penstock.delegates.driver import AnyDevice, CallerCache, checked_choice
from penstock.delegates.kinds import FLOATS, Kind, KindDelegate, is_quantised, shown_type
from penstock.errors import InputError
from penstock.hal import Preference
from penstock.ir import Operand

InferencePreference = Literal["fast_single_answer", "sustained_speed", "balanced"]
InferencePriority = Literal["auto", "max_precision", "min_latency", "min_memory_usage"]

PREFERENCES: Final[Mapping[str, Preference]] = {
    "fast_single_answer": "fast_single_answer",
    "sustained_speed": "sustained_speed",
    "balanced": "fast_single_answer",
}
PRIORITIES: Final = ("auto", "max_precision", "min_latency", "min_memory_usage")

GPU: Final = Kind("GPU", ("gpu",), stand_ins=("software-gpu",))
ALL_FLAGS: Final = 15


class GpuExperimentalFlags(enum.IntFlag):
    """TFLite's flags.

    ENABLE_QUANT accepts quantised nodes. CL_ONLY and GL_ONLY require a GPU of the family "opencl"
    or "opengl". ENABLE_SERIALIZATION caches compiled artefacts in *serialization_dir*.
    """

    NONE = 0
    ENABLE_QUANT = 1
    CL_ONLY = 2
    GL_ONLY = 4
    ENABLE_SERIALIZATION = 8


class GpuDelegate(KindDelegate):
    """Runs nodes with float32, float16 and quantised 8-bit tensors on a GPU.

    - *is_precision_loss_allowed* True accepts the engine's own arithmetic and reduced precision
      (accuracy class `relaxed`); False requires `faithful`; None decides by the priorities: only
      *inference_priority1* "max_precision" requires `faithful`.
    - A priority "auto" leaves this priority and all later ones open.
    - *inference_preference* "balanced" is "fast_single_answer".
    - *experimental_flags* are `GpuExperimentalFlags`.
    - *max_delegated_partitions* limits the subsets, the largest first; TFLite's default is 1, and 0
      takes all.
    - *serialization_dir* and *model_token* need ENABLE_SERIALIZATION.
    - *device* is a device or its name. None takes the fastest GPU of every installed driver,
      including devices that are otherwise used only by name. A device of the family "software-gpu",
      such as "webgpu-software", is no GPU, computes as one does, and is taken only if it is named.

    Raises `DeviceUnavailable` if there is no such device; the message lists the requirements and
    the devices found. Raises `InputError` for a wrong option.
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
        checked_choice("inference_preference", inference_preference, PREFERENCES)
        priorities = (inference_priority1, inference_priority2, inference_priority3)
        for number, priority in enumerate(priorities, 1):
            checked_choice(f"inference_priority{number}", priority, PRIORITIES)
        given = [p for p in priorities if p != "auto"]
        if priorities[0] == "auto":
            text = 'inference_priority1 is "auto"; only what comes after a priority can be'
            raise InputError(text)
        if tuple(given) != priorities[: len(given)]:
            raise InputError("an inference priority follows one that is left open")
        if len(set(given)) != len(given):
            raise InputError(f"an inference priority is given twice: {', '.join(given)}")
        flags = experimental_flags
        if type(flags) not in (int, GpuExperimentalFlags) or not 0 <= flags <= ALL_FLAGS:
            raise InputError(f"experimental_flags are GpuExperimentalFlags, not {flags!r}")
        self.flags_of_gpu = GpuExperimentalFlags(flags)
        only = {GpuExperimentalFlags.CL_ONLY: "opencl", GpuExperimentalFlags.GL_ONLY: "opengl"}
        families = tuple(family for flag, family in only.items() if flag in self.flags_of_gpu)
        if len(families) > 1:
            raise InputError("experimental_flags has CL_ONLY and GL_ONLY, which leave no GPU")
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
        names = "serialization_dir", "model_token"
        super().__init__(
            replace(GPU, families=families),
            device,
            accuracy="relaxed" if reduced else "faithful",
            preference=PREFERENCES[inference_preference],
            num_threads=num_threads,
            max_delegated_partitions=max_delegated_partitions,
            caller_cache=CallerCache(serialization_dir, model_token, names),
        )

    def refuses(self, operand: Operand) -> str:
        """Accepts float32, float16 and, with ENABLE_QUANT, quantised 8-bit tensors."""
        if operand.dtype.value in FLOATS:
            return ""
        shown = f"is {shown_type(operand)}"
        if not is_quantised(operand):
            return f"{shown}; a GPU is given float32, float16 and quantised 8-bit tensors"
        if GpuExperimentalFlags.ENABLE_QUANT not in self.flags_of_gpu:
            without = "experimental_flags is without ENABLE_QUANT, which takes quantised nodes"
            return f"{shown}, and {without}"
        return ""
