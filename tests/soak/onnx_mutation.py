"""Seeded damage to ONNX files, and one trial: load it, and run what loads."""

from __future__ import annotations

import contextlib
import random
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from penstock import knobs, loaders
from penstock.errors import ModelError
from penstock.ir import infer_shapes
from tests.soak import mutation
from tests.soak.mutation import LIMITS, Mutation, flip_bytes, move, truncate
from tests.soak.running import run
from tests.support_onnx import one_node
from tests.unit.loaders.onnx_files import test_onnx_graphs as graphs
from tests.unit.loaders.onnx_files.onnx_cases import ROWS

NUMBERS = (
    -1,
    0,
    1,
    2,
    3,
    5,
    127,
    255,
    1 << 15,
    1 << 31,
    1 << 40,
    (1 << 63) - 1,
    -(1 << 31),
    -(1 << 63),
)
EVERY = 4
"""Of the one-node models, how far the samples stand apart."""


def samples() -> list[bytes]:
    """The files that mutations start from."""
    found = []
    for op, inputs, attributes, options in ROWS[::EVERY]:
        wanted = {k: v for k, v in options.items() if k != "judge"}
        found.append(one_node(op, inputs, attributes, **wanted)[0].SerializeToString())
    x = {"x": graphs.f(2)}
    found.append(graphs.loop_model(None, x | {"m": np.array(3)}, graphs.STEP).SerializeToString())
    return found


def mutate(seeds: Sequence[bytes], seed: int) -> bytes:
    """The damaged file number *seed*."""
    return mutation.mutate(seeds, seed, MUTATIONS)


def trial(content: bytes) -> str:
    """Loads *content*: the name of the defect, or "loads" and how a run ends. Whatever else is
    raised is a defect of Penstock.
    """
    with knobs.override(**LIMITS):
        try:
            model = loaders.load(content)
        except ModelError as error:
            return type(error).__name__
        with contextlib.suppress(ModelError):
            infer_shapes(model)
        return f"loads, {run(model)}"


def restructure(content: bytes, rng: random.Random) -> bytes:
    """Changes fields of messages and encodes the file anew: damage that no parser sees."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception:  # noqa: BLE001  # the parser's own class differs by its version
        return content
    for _ in range(rng.choice((1, 1, 2, 4))):
        message = rng.choice(_messages(model))
        fields = message.ListFields()
        if fields:
            field, value = rng.choice(fields)
            _change(message, field, value, rng)
    encoded: bytes = model.SerializeToString()
    return encoded


def _messages(message: Any) -> list[Any]:
    found = [message]
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        repeated = field.is_repeated
        for item in value if repeated else [value]:
            found += _messages(item)
    return found


def _change(message: Any, field: Any, value: Any, rng: random.Random) -> None:
    repeated = field.is_repeated
    if rng.random() < 0.1:
        message.ClearField(field.name)
    elif field.message_type is not None:
        if repeated:
            at = rng.randrange(len(value))
            if rng.random() < 0.5:
                value.add().CopyFrom(value[at])
            else:
                del value[at]
    elif repeated:
        at = rng.randrange(len(value))
        match rng.randrange(3):
            case 0:
                del value[at]
            case 1:
                value.append(value[at])
            case _:
                with contextlib.suppress(ValueError, TypeError):
                    value[at] = _other(value[at], rng)
    else:
        with contextlib.suppress(ValueError, TypeError):
            setattr(message, field.name, _other(value, rng))


def _other(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice(NUMBERS) if rng.random() < 0.5 else rng.randrange(-3, 30)
    if isinstance(value, float):
        return rng.choice((0.0, -1.0, 1e30, float("nan"), float("inf")))
    if isinstance(value, bytes):
        return rng.choice((b"", value[:-1], value * 2, rng.randbytes(len(value))))
    return rng.choice(
        ("", "x0", "x1", "y0", "Conv", "Gather", "Reshape", "If", "Concat", value + "z")
    )


MUTATIONS: tuple[Mutation, ...] = (
    flip_bytes,
    truncate,
    move,
    restructure,
    restructure,
    restructure,
    restructure,
)


def main(count: int = 20_000) -> None:
    """Tries *count* damaged files and prints how they ended."""
    seeds = samples()
    outcomes = Counter(trial(mutate(seeds, seed)) for seed in range(count))
    for outcome, number in outcomes.most_common():
        print(f"{number:8}  {outcome}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
