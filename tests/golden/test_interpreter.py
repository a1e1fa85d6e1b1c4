"""The recorded cases of the corpus, and the files LiteRT stops at, through
`penstock.tflite.Interpreter`.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import tflite
from penstock.errors import ModelError
from tests.conftest import CORPUS, corpus_parameters
from tests.golden.arrays import golden
from tests.golden.cases import (
    Entry,
    LiteRT,
    check_labels,
    groups,
    invoke,
    operators_meant,
    parameters,
    rule,
)
from tests.golden.comparison import Case, Rule, compare
from tests.golden.test_networks import GAPS


@lru_cache(maxsize=16)
def keep_open(path: Path) -> tflite.Interpreter:
    """Has the interpreters of a file's groups share what was read of it; not of all files, for each
    holds descriptors.
    """
    return tflite.Interpreter(path)


@pytest.mark.parametrize(
    ("entry", "cases"),
    corpus_parameters([*groups("network", GAPS), *groups("unit", GAPS)], arguments=2),
)
def test_recorded_cases(entry: Entry, cases: list[dict[str, Any]]) -> None:
    assert CORPUS is not None
    path = CORPUS / "models" / entry["file"]
    keep_open(path)
    arrays = golden(CORPUS / "models" / entry["golden"]["file"])
    resolver = tflite.OpResolverType.BUILTIN_REF
    with tflite.Interpreter(path, experimental_op_resolver_type=resolver) as interpreter:
        for position, case in enumerate(cases):
            got = invoke(interpreter, case, arrays, first=position == 0)
            wanted = [arrays[f"{case['id']}/out/{k}"] for k in case["outputs"]]
            compare(got, Case(wanted, LiteRT(path, arrays, cases[: position + 1])), rule(entry))
            check_labels(case, got)


def _construct(entry: Entry) -> tflite.Interpreter:
    assert CORPUS is not None
    return tflite.Interpreter(CORPUS / "models" / entry["file"])


def _run(interpreter: Any) -> None:
    interpreter.allocate_tensors()
    for detail in interpreter.get_input_details():
        text = detail["dtype"] is np.bytes_
        value = np.full(detail["shape"], b"text") if text else None
        zeros = np.zeros(detail["shape"], detail["dtype"]) if value is None else value
        interpreter.set_tensor(detail["index"], zeros)
    interpreter.invoke()


@pytest.mark.parametrize("entry", parameters("rejected"))
def test_files_that_litert_rejects(entry: Entry) -> None:
    stage = entry["reference_runtime"]["stops_at"]
    message = entry["reference_runtime"]["message"]
    if stage == "load":
        with pytest.raises(ValueError):
            _construct(entry)
        return
    interpreter = _construct(entry)
    if stage == "runs":
        _run(interpreter)
    elif stage in {"allocate", "invoke"}:
        with pytest.raises(RuntimeError) as caught:
            interpreter.allocate_tensors()
        names = operators_meant(entry)
        assert any(name in str(caught.value) for name in names), (names, str(caught.value))
        if "unresolved" in message or "Select TensorFlow" in message:
            words = str(caught.value).replace("\n", " ")
            assert message.removeprefix("RuntimeError: ")[:150].rstrip() in words
    else:
        with pytest.raises(RuntimeError):
            _run(interpreter)


@pytest.mark.parametrize("entry", parameters("corrupted"))
def test_damaged_files(entry: Entry) -> None:
    stage = entry["reference_runtime"]["stops_at"]
    try:
        interpreter = _construct(entry)
    except ValueError:
        assert stage in {"load", "allocate"} or "crash" in stage
        return
    assert stage != "load"
    if stage != "runs":
        with pytest.raises(RuntimeError):
            _run(interpreter)
        return
    try:
        _run(interpreter)
    except RuntimeError as error:
        if not isinstance(error.__cause__, ModelError):
            raise
        return
    litert = pytest.importorskip("ai_edge_litert.interpreter", reason="LiteRT is needed as judge")
    assert CORPUS is not None
    plain = litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    path = str(CORPUS / "models" / entry["file"])
    judge = litert.Interpreter(path, experimental_op_resolver_type=plain)
    _run(judge)
    got, wanted = (
        [np.asarray(i.get_tensor(d["index"])) for d in i.get_output_details()]
        for i in (interpreter, judge)
    )
    compare(got, Case(wanted, lambda: None), Rule(None, {}))
