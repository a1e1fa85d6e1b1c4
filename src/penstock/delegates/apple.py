"""Which of Apple's machines have a neural engine that other programs may use."""

from __future__ import annotations

import platform
import re
import sys
from typing import Final

from msgspec import Struct

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
