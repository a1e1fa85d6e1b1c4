"""The reference driver against LiteRT's reference kernels: `.tflite` networks, one core."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from benchmarks.measuring import Row, corpus_model, interleaved, medians, worked
from penstock.ir import NDArray

NAME = "networks"
LIMIT = 3.0
JUDGED_MACS = 1e6
"""Multiply-accumulates above which a network must meet the limit. Below, overhead of calls
dominates.

A network that LiteRT's reference kernels cannot run is compared with LiteRT's delegate and has no
limit.
"""

ENOUGH_SECONDS = 4.0
"""Seconds after which a network's rounds end; at least two rounds run."""


def rows(*, quick: bool) -> list[Row]:
    """Our time over LiteRT's, by network. Empty without the corpus or LiteRT."""
    sample = corpus_model("hello_world_float")
    if sample is None:
        return []
    models = sample.parent.parent
    manifest = json.loads((models / "manifest.json").read_bytes())
    found = []
    for entry in manifest["entries"]:
        if entry["kind"] == "network" and entry["format"] == "tflite":
            row = compared(entry, models, rounds=2 if quick else 15)
            if row is not None:
                found.append(row)
    return found


def compared(entry: Mapping[str, Any], models: Path, *, rounds: int) -> Row | None:
    """The ratio for one network on its first recorded case; None if LiteRT is not installed."""
    case = entry["golden"]["cases"][0]
    path = models / entry["file"]
    with np.load(models / entry["golden"]["file"], allow_pickle=False) as arrays:
        given = {k: arrays[f"{case['id']}/in/{k}"] for k in case["inputs"]}
    signature = case.get("signature")
    model = penstock.load(path)
    if signature is None:
        names = {k: model.inputs[int(k)].name for k in given}
    else:
        names = {k: k for k in given}
    shapes = {names[k]: tuple(v) for k, v in (case.get("resize_inputs") or {}).items()} or None
    macs = entry.get("macs_at_golden_shape") or entry["macs"] or 0
    with penstock.compile(
        model, devices=["reference"], signature=signature, shapes=shapes, num_threads=1
    ) as compiled:
        inputs: Any = given if signature else list(given.values())
        other = litert_runner(path, given, signature)
        if other is None:
            return None
        run, kernels = other
        subjects: dict[str, Callable[[], float]] = {
            "penstock": lambda: worked(lambda: compiled.run(inputs)),
            "litert": lambda: worked(run),
        }
        interleaved(subjects, 1)
        values = _timed(subjects, rounds)
    ratio = values["penstock"] / values["litert"]
    note = f"{macs / 1e6:.1f} M MACs, {1e3 * values['penstock']:.2f} ms, {kernels}"
    limit = LIMIT if macs > JUDGED_MACS and kernels != "BUILTIN" else None
    return Row(NAME, f"{entry['id']}, {note}", ratio, "x", limit)


def _timed(subjects: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    values: dict[str, list[float]] = {name: [] for name in subjects}
    for turn in range(rounds):
        for name, found in interleaved(subjects, 1).items():
            values[name] += found
        if turn and sum(map(sum, values.values())) > ENOUGH_SECONDS:
            break
    return medians(values)


def litert_runner(
    model: Path | bytes, given: Mapping[str, NDArray], signature: str | None
) -> tuple[Callable[[], object], str] | None:
    """One run of a file or its contents by LiteRT on one thread.

    It uses the first kernel set that has every operator: reference, built-in, built-in with the
    default delegate. Returns None if LiteRT is not installed.
    """
    try:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType
    except ImportError:
        return None
    source: dict[str, Any] = (
        {"model_content": model} if isinstance(model, bytes) else {"model_path": str(model)}
    )
    for kind in (
        OpResolverType.BUILTIN_REF,
        OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        OpResolverType.BUILTIN,
    ):
        try:
            interpreter = Interpreter(**source, experimental_op_resolver_type=kind, num_threads=1)
            return _runner(interpreter, given, signature), kind.name
        except (ValueError, RuntimeError):
            if kind is OpResolverType.BUILTIN:
                raise
    return None


def _runner(
    interpreter: Any, given: Mapping[str, NDArray], signature: str | None
) -> Callable[[], object]:
    if signature is not None:
        runner = interpreter.get_signature_runner(signature)
        return lambda: runner(**given)
    details = interpreter.get_input_details()
    for k, array in given.items():
        if tuple(details[int(k)]["shape"]) != array.shape:
            interpreter.resize_tensor_input(details[int(k)]["index"], array.shape)
    interpreter.allocate_tensors()
    wanted = [d["index"] for d in interpreter.get_output_details()]

    def run() -> object:
        for k, array in given.items():
            interpreter.set_tensor(details[int(k)]["index"], array)
        interpreter.invoke()
        return [interpreter.get_tensor(i) for i in wanted]

    return run
