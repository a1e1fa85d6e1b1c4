"""What a device makes of a model, for people: stages of a compile, and words for each operation.

All of it is optional: a device may have none of these members.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.errors import GeneralFailure, InvalidArgument

if TYPE_CHECKING:
    from penstock.hal.config import PrepareConfig
    from penstock.hal.device import Device
    from penstock.ir import Model


def stages_of(device: object) -> tuple[str, ...]:
    """The stages that *device* prints, in their order; none if it has no such member."""
    return tuple(getattr(device, "stages", ()))


def check_stage(device: Device, stage: str) -> None:
    """Raises `GeneralFailure` for a device that prints no stages, and `InvalidArgument`, with the
    known ones, for a *stage* that it does not have.
    """
    known = stages_of(device)
    if not known:
        raise GeneralFailure(f"device {device.name!r} prints no stages of its compile")
    if stage not in known:
        raise InvalidArgument(
            f"device {device.name!r} has no stage {stage!r}; its stages are {', '.join(known)}"
        )


def dump(device: Device, model: Model, config: PrepareConfig, stage: str) -> str:
    """The result of *stage* of a compile of *model*, as text. Raises what `check_stage` raises, and
    what the device's `prepare_model` would.
    """
    check_stage(device, stage)
    printer = getattr(device, "dump", None)
    if printer is None:
        raise GeneralFailure(f"device {device.name!r} names stages, and has no dump")
    text = printer(model, config, stage)
    if not isinstance(text, str):
        raise GeneralFailure(f"device {device.name!r} dumps {type(text).__name__} instead of text")
    return text


def explanations(device: Device, model: Model, config: PrepareConfig) -> tuple[str, ...]:
    """How *device* computes each operation of *model*, which it supports, in words; nothing if it
    does not say. Raises `GeneralFailure` for words that are not one text an operation.
    """
    explain = getattr(device, "explain", None)
    words: Sequence[str] = () if explain is None else tuple(explain(model, config))
    right = len(words) in {0, len(model.operations)} and all(isinstance(w, str) for w in words)
    if not right:
        raise GeneralFailure(
            f"device {device.name!r} explains {len(model.operations)} operations in "
            f"{len(words)} texts"
        )
    return tuple(words)
