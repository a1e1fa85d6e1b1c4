"""`penstock dump`: the value that one stage ends in."""

from __future__ import annotations

import json
from enum import Enum
from typing import Annotated

import typer

from penstock.cli import options
from penstock.cli.output import output_of


class Stage(Enum):
    LOAD = "load"
    PARTITION = "partition"
    COMPILE = "compile"


def dump(
    context: typer.Context,
    model: options.ModelFile,
    after: Annotated[Stage, typer.Option("--after", help="The stage to stop after.")],
    device: options.Devices = None,
    signature: options.SignatureName = None,
) -> None:
    """Print the model, the plan, or what was compiled, as text that can be compared."""
    from penstock.cli import opening

    output = output_of(context)
    loaded = opening.load(model)
    if after is Stage.LOAD:
        text, data = loaded.model.show(), {"text": loaded.model.show()}
    else:
        opening.warn_of_settings(output)
        compiled, _ = opening.compile_model(
            loaded.model, loaded.path, devices=device, signature=signature
        )
        with compiled:
            text, data = compiled.plan.show(), json.loads(compiled.plan.to_json())
            if after is Stage.COMPILE:
                text += compiled.receipt.show()
                data = {"plan": data, "receipt": json.loads(compiled.receipt.to_json())}
    output.line(text.rstrip("\n"))
    output.json({"stage": after.value, after.value: data})
