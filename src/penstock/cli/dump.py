"""`penstock dump`: the result of each stage, of the runtime or of a device's compile."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from penstock.cli import options
from penstock.cli.declarations import option
from penstock.cli.failures import FileError, UsageError
from penstock.cli.options import assumed_shapes, parse_shapes, shaped
from penstock.cli.output import Output
from penstock.errors import ModelError

if TYPE_CHECKING:
    from penstock import CompiledModel
    from penstock.hal import Device

STAGES: Final = ("load", "partition", "compile")
"""The runtime's own stages. Devices name others (`penstock.hal.stages`)."""


def dump(
    output: Output,
    model: options.ModelFile,
    after: Annotated[
        str,
        option(
            "--after STAGE",
            "The stage to stop after: load, partition, compile, or one that a device of -d prints.",
        ),
    ],
    device: options.Devices = None,
    signature: options.SignatureName = None,
    shape: options.Shapes = None,
) -> None:
    """Print the model, the plan, what was compiled, or a stage of a device's compile, as text that
    can be compared.

    A stage of a device prints each step of the plan that this device gets; an unknown dimension of
    MODEL counts there as 1 unless --shape sets it.
    """
    from penstock.cli import opening
    from penstock.execution.interface import interface_of

    given = parse_shapes(shape)
    choices = options.Choices(device, signature)
    printers = [] if after in STAGES else printers_of(after, device)
    loaded = opening.load(model)
    if after == "load":
        text, data = loaded.model.show(), {"text": loaded.model.show()}
    else:
        opening.warn_of_settings(output)
        likely: dict[str, tuple[int, ...]] = {}
        try:
            entered = loaded.model.signature_model(signature) if signature else loaded.model
            shaped(interface_of(entered, signature).inputs, given)
            if printers:
                likely = assumed_shapes(loaded.model, signature, given)
        except ModelError as error:
            raise FileError(loaded.path, str(error)) from error
        compiled, _ = opening.compile_model(loaded, choices, None, {**likely, **given}, likely)
        with compiled:
            text, data = _texts(compiled, after, printers)
    output.line(text.rstrip("\n"))
    output.json({"stage": after, after: data})


def printers_of(stage: str, named: Sequence[str] | None) -> list[Device]:
    """The devices, of the *named* ones or of all, that print *stage*. Raises `UsageError` with the
    known stages if none does.
    """
    from penstock.cli import opening
    from penstock.hal import stages_of
    from penstock.runtime import manager

    if named:
        opening.check_devices(named, usable=True)
    candidates = manager.choose(list(named) if named else None)
    found = [device for device in candidates if stage in stages_of(device)]
    if not found:
        known = [f"{d.name}: {', '.join(stages_of(d))}" for d in candidates if stages_of(d)]
        raise UsageError(
            f"no stage {stage!r}; the stages are {'; '.join([', '.join(STAGES), *known])}"
        )
    return found


def _texts(
    compiled: CompiledModel, after: str, printers: Sequence[Device]
) -> tuple[str, dict[str, Any]]:
    """The text of a stage that needs a plan, and its values for `--json`."""
    if after not in STAGES:
        return _device_stage(compiled, after, printers)
    text, data = compiled.plan.show(), json.loads(compiled.plan.to_json())
    if after == "compile":
        text += compiled.receipt.show()
        data = {"plan": data, "receipt": json.loads(compiled.receipt.to_json())}
    return text, data


def _device_stage(
    compiled: CompiledModel, stage: str, printers: Sequence[Device]
) -> tuple[str, dict[str, Any]]:
    """What the devices make of the steps that they get. Raises `UsageError` if they get none."""
    from penstock.hal import PrepareConfig
    from penstock.hal.stages import dump as dump_stage

    names = {device.name: device for device in printers}
    steps = [step for step in compiled.plan.steps if step.device in names]
    if not steps:
        raise UsageError(
            f"{', '.join(names)} would print stage {stage!r}, and gets no step of the plan; "
            f"-d {next(iter(names))} gives it the steps that it supports"
        )
    texts = [
        dump_stage(names[s.device], s.model, PrepareConfig(options=s.options), stage) for s in steps
    ]
    headed = len(steps) > 1
    parts = [
        f"step {step.index} on {step.device}\n\n{text}" if headed else text
        for step, text in zip(steps, texts, strict=True)
    ]
    found = [
        {"step": step.index, "device": step.device, "text": text}
        for step, text in zip(steps, texts, strict=True)
    ]
    return "\n".join(parts), {"steps": found}
