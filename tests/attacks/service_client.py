"""A client of a service, and a forger: run as a user of its own by test_service.py. Says what came
of it in JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

import penstock
from penstock.hal import PrepareConfig
from penstock.ipc.client import RemoteDevice, RemotePreparedModel
from penstock.ir import ConstantPool, Model, Operand
from penstock.testing.contract.cases import every_case

CASE = next(case for case in every_case() if case.name == "fully_connected")


def run(cache: str, *, isolate: bool) -> dict[str, Any]:
    """Compiles with the cache and runs once."""
    with penstock.compile(
        CASE.model, devices=["sample"], cache=cache, isolate=isolate,
        policy=penstock.Policy(allow_fallback=False)
    ) as compiled:  # fmt: skip
        step = compiled.receipt.steps[0]
        found = compiled.run(list(CASE.inputs))
        values = list(found)
        right = all(np.array_equal(a, b) for a, b in zip(values, CASE.outputs, strict=True))
    said: dict[str, Any] = {"outcome": step.cache.outcome, "reason": step.cache.reason}
    return {**said, "right": right, "saved": step.cache.saved}


def files(root: str) -> list[Path]:
    """Every file that can be found below *root*."""
    return sorted(Path(d, name) for d, _, names in os.walk(root) for name in names)


def rewrite(cache: str, forged: str, *roots: str) -> dict[str, Any]:
    """Rewrites every file below *roots* that can be written: with the forged one of the same place
    in the cache, where there is one, else with a bit of each byte changed.
    """
    written, kept_out = [], []
    for path in [path for root in roots for path in files(root)]:
        twin = Path(forged) / path.relative_to(cache) if path.is_relative_to(cache) else None
        if path.is_relative_to(forged):
            continue
        try:
            content = path.read_bytes()
            other = twin.read_bytes() if twin is not None and twin.is_file() else _altered(content)
            path.write_bytes(other)
        except OSError:
            kept_out.append(str(path))
        else:
            written.append(str(path))
    return {"written": written, "kept out": kept_out}


def sow(own: str, cache: str) -> dict[str, Any]:
    """Has the service seal another model in the place of the one that token and binding are of, and
    puts it into *cache*.
    """
    honest = RemoteDevice.prepare_model

    def prepare_model(
        self: RemoteDevice, model: Model, config: PrepareConfig
    ) -> RemotePreparedModel:
        return honest(self, _other(model), config)

    RemoteDevice.prepare_model = prepare_model  # type: ignore[method-assign]  # the attack
    return {**run(own, isolate=True), **rewrite(cache, own, cache)}


def _other(model: Model) -> Model:
    """*model* with other constants."""
    pools = tuple(ConstantPool(memoryview(_altered(bytes(pool.view)))) for pool in model.pools)
    graph = replace(model.entry, operands=tuple(map(_changed, model.operands)))
    return replace(model, pools=pools, subgraphs=(graph, *model.subgraphs[1:]))


def _changed(operand: Operand) -> Operand:
    return operand if operand.value is None else replace(operand, value=_altered(operand.value))


def reach(places: list[str]) -> dict[str, str]:
    """What opening each place gives."""
    found = {}
    for place in places:
        try:
            if Path(place).is_dir():
                list(Path(place).iterdir())
            else:
                Path(place).open("rb").close()
        except OSError as error:
            found[place] = type(error).__name__
        else:
            found[place] = "open"
    return found


def _altered(content: bytes) -> bytes:
    return bytes(byte ^ 1 for byte in content)


def main() -> None:
    action, *arguments = sys.argv[1:]
    if action == "run":
        answer: Any = run(arguments[0], isolate=True)
    elif action == "forge":
        answer = run(arguments[0], isolate=False)
    elif action == "sow":
        answer = sow(*arguments)
    elif action == "rewrite":
        answer = rewrite(*arguments)
    else:
        answer = reach(arguments)
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
