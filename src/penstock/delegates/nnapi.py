"""`NnapiDelegate`: the whole runtime, with TFLite's options for NNAPI. Experimental until 1.0."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from penstock.delegates.driver import CallerCache, DriverDelegate, checked_choice
from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import DeviceUnavailable, InputError
from penstock.hal import Device, Preference
from penstock.logs import Log
from penstock.partitioning.policy import Policy
from penstock.runtime.discovery import manager

ExecutionPreference = Literal["undefined", "low_power", "fast_single_answer", "sustained_speed"]

PREFERENCE_OF: Final[Mapping[str, Preference]] = {
    "undefined": "fast_single_answer",
    "low_power": "low_power",
    "fast_single_answer": "fast_single_answer",
    "sustained_speed": "sustained_speed",
}

log = Log(__name__)

DEFAULT_PARTITIONS: Final = 3
"""TFLite's default. Entering and leaving further subsets costs more than they save."""


class NnapiDelegate(DriverDelegate):
    """Gives the runtime the nodes that its devices support, and leaves the rest to the interpreter.

    - *accelerator_name* restricts it to one device; `DeviceUnavailable` lists the usable ones if
      none has that name.
    - *cache_dir* is the directory for compiled subsets. They are stored under *model_token* (text
      or bytes) if given, otherwise under a key of their ingredients. Without *cache_dir* nothing is
      cached. If it cannot be written, a warning is logged and every start compiles.
    - *execution_preference* "undefined" is "fast_single_answer".
    - *max_number_delegated_partitions* limits the subsets, the largest first; 0 or less takes all.
    - *disallow_nnapi_cpu* excludes the reference device, which corresponds to NNAPI's CPU path,
      unless it is named, and turns fallback off. `DeviceUnavailable` if it is the only device. True
      is TFLite's default, not Penstock's: here the reference device computes the rest in either
      case.
    - *allow_fp16* accepts reduced precision (the accuracy class `relaxed`).
    """

    def __init__(
        self,
        accelerator_name: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        model_token: str | bytes | None = None,
        execution_preference: ExecutionPreference = "undefined",
        max_number_delegated_partitions: int = DEFAULT_PARTITIONS,
        disallow_nnapi_cpu: bool = False,
        allow_fp16: bool = False,
        num_threads: int | None = None,
    ) -> None:
        checked_choice("execution_preference", execution_preference, PREFERENCE_OF)
        most = max_number_delegated_partitions
        if type(most) is not int:
            raise InputError(f"max_number_delegated_partitions is a whole number, not {most!r}")
        super().__init__(
            _devices(accelerator_name, disallow_nnapi_cpu),
            policy=Policy(
                accuracy="relaxed" if allow_fp16 else "faithful",
                allow_fallback=not disallow_nnapi_cpu,
            ),
            preference=PREFERENCE_OF[execution_preference],
            cache=False,
            num_threads=num_threads,
            max_delegated_partitions=most if most > 0 else None,
        )
        self.caller_cache = CallerCache(cache_dir, model_token, ("cache_dir", "model_token"))
        if cache_dir is None:
            return
        from penstock.cache.info import checked_directory

        place = Path(checked_directory(cache_dir))
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            reason = "" if os.access(place, os.W_OK | os.X_OK) else "it cannot be written"
        except OSError as error:
            reason = error.strerror or str(error)
        if reason:
            log.warning("%s keeps nothing in cache_dir %s: %s", self.name, cache_dir, reason)


def _devices(name: str | None, without_cpu: bool) -> list[Device]:
    """The named device, or all permitted devices."""
    if name is not None:
        if not isinstance(name, str):
            raise InputError(f"accelerator_name is a device's name, not {name!r}")
        if (found := manager.by_name(name)) is None:
            usable = ", ".join(i.name for i in manager.infos() if i.usable) or "none"
            raise DeviceUnavailable(f"no usable accelerator {name!r}; usable are: {usable}")
        return [found]
    devices = [d for d in manager.choose(None) if not (without_cpu and d.name == FALLBACK_DEVICE)]
    if not devices:
        raise DeviceUnavailable(
            "no device but the reference one is usable here, and disallow_nnapi_cpu leaves that out"
        )
    return devices
