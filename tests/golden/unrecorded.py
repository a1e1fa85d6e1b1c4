"""LiteRT's answers to inputs of which the corpus recorded none: zeros for damaged files, drawn ones
for a race.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.ir import NDArray
from tests.conftest import CORPUS, NO_CORPUS
from tests.golden.cases import Entry, LiteRT, invoke
from tests.golden.engine_rules import Judged


def judged_on_zeros(entry: Entry) -> Judged:
    """As `judged_on`, with zeros for numbers and b"text" for strings, in the shapes of the file."""
    details = _optimised(_path(entry)).get_input_details()
    return judged_on(entry, [_zeros(detail) for detail in details])


def judged_on(entry: Entry, inputs: Sequence[NDArray]) -> Judged:
    """A case of a `.tflite` file of the corpus on *inputs*, with what LiteRT's optimised kernels
    answer as its outputs. Skips the test where LiteRT is not installed.
    """
    path = _path(entry)
    interpreter = _optimised(path)
    # `LiteRT` keeps its answers by the name of the case.
    name = hashlib.sha256(b"".join(array.tobytes() for array in inputs)).hexdigest()
    arrays = {f"{name}/in/{k}": array for k, array in enumerate(inputs)}
    case = {
        "id": name,
        "group": name,
        "inputs": [str(k) for k in range(len(inputs))],
        "outputs": [str(k) for k in range(len(interpreter.get_output_details()))],
    }
    found = invoke(interpreter, case, arrays, first=True)
    arrays |= {f"{name}/out/{k}": array for k, array in enumerate(found)}
    defaults = {"dtype_scheme": "", "ops": {}, "outputs": []}
    reference, default = (
        LiteRT(path, arrays, [case], kernels) for kernels in ("reference", "default")
    )
    return Judged(
        {**defaults, **entry, "golden": {"cases": [case]}}, case, found, reference, default
    )


def _path(entry: Entry) -> Path:
    if CORPUS is None:
        raise FileNotFoundError(NO_CORPUS)
    path: Path = CORPUS / "models" / entry["file"]
    return path


def _optimised(path: Path) -> Any:
    litert = pytest.importorskip("ai_edge_litert.interpreter", reason="LiteRT is needed as judge")
    kernels = litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    return litert.Interpreter(str(path), experimental_op_resolver_type=kernels, num_threads=1)


def _zeros(detail: dict[str, Any]) -> NDArray:
    if detail["dtype"] is np.bytes_:
        return np.full(detail["shape"], b"text", object)
    return np.zeros(detail["shape"], detail["dtype"])
