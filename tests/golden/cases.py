"""The recorded cases of the corpus: which there are, what each is fed, and how it is judged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypeAlias

import flatbuffers
import numpy as np
import pytest

import penstock
from penstock.ir import NDArray
from tests.conftest import CORPUS, NO_CORPUS, corpus_parameters
from tests.golden.arrays import golden
from tests.golden.comparison import Case, Rule, compare

Entry: TypeAlias = "dict[str, Any]"
Kind: TypeAlias = Literal["network", "unit", "rejected", "corrupted"]


Format: TypeAlias = Literal["tflite", "onnx"]


def entries(kind: Kind, file_format: Format = "tflite") -> list[Entry]:
    """The files of the corpus of one kind and format; none without a corpus."""
    return [e for e in _manifest() if e["kind"] == kind and e["format"] == file_format]


@cache
def _manifest() -> list[Entry]:
    if CORPUS is None:
        return []
    found: list[Entry] = json.loads((CORPUS / "models" / "manifest.json").read_bytes())["entries"]
    return found


def parameters(kind: Kind) -> list[Any]:
    """A parameter for each of `entries(kind)`."""
    return corpus_parameters(pytest.param(entry, id=entry["id"]) for entry in entries(kind))


def operators_meant(entry: Entry) -> list[str]:
    """The operators that LiteRT's message names; every operator of the file if it names none."""
    operators = [name.removeprefix("CUSTOM:") for name in entry["ops"]]
    message = entry["reference_runtime"]["message"]
    named = [name for name in operators if re.search(rf"\b{re.escape(name)}\b", message)]
    return named or entry.get("custom_ops") or operators


def case_groups(entry: Entry) -> dict[str, list[dict[str, Any]]]:
    """The cases of an entry by group; those of a group follow each other on one model, state
    carried.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for case in entry["golden"]["cases"]:
        found.setdefault(case["group"], []).append(case)
    return found


def groups(kind: Kind, gaps: Mapping[str, str]) -> Iterator[Any]:
    """Parameters (entry, cases), a group each; files in *gaps* must fail."""
    for entry in entries(kind):
        marks: list[pytest.MarkDecorator] = []
        if entry["id"] in gaps:
            marks.append(pytest.mark.xfail(strict=True, reason=gaps[entry["id"]]))
        for group, cases in case_groups(entry).items():
            yield pytest.param(entry, cases, id=f"{entry['id']}-{group}", marks=marks)


def check_compiled(entry: Entry, cases: list[dict[str, Any]]) -> None:
    """Runs the cases of one group through `penstock.compile`; `AssertionError` where an output is
    off.
    """
    if CORPUS is None:
        raise FileNotFoundError(NO_CORPUS)
    path = CORPUS / "models" / entry["file"]
    arrays = golden(CORPUS / "models" / entry["golden"]["file"])
    model = load(path)
    signature = cases[0].get("signature")
    sizes = shapes(model, signature, cases[0].get("resize_inputs"))
    with penstock.compile(model, devices=["reference"], signature=signature, shapes=sizes) as net:
        for position, case in enumerate(cases):
            given = [arrays[f"{case['id']}/in/{k}"] for k in case["inputs"]]
            wanted = [arrays[f"{case['id']}/out/{k}"] for k in case["outputs"]]
            outputs = net.run(dict(zip(case["inputs"], given, strict=True)) if signature else given)
            got = [outputs[k] if signature else outputs[int(k)] for k in case["outputs"]]
            judge = LiteRT(path, arrays, cases[: position + 1])
            compare(got, Case(wanted, judge), rule(entry))
            check_labels(case, got)


def given_to_onnx(array: NDArray) -> NDArray:
    """What ONNX Runtime was given when the corpus was recorded: it takes the printed form of bytes
    for the string.
    """
    if array.dtype.kind != "S":
        return array
    texts = np.empty(array.size, object)
    texts[:] = [str(bytes(v)).encode() for v in array.reshape(-1)]
    return texts.reshape(array.shape)


@lru_cache(maxsize=128)
def load(path: Path) -> penstock.Model:
    """The model of a file, read once for many tests; the corpus has more of them than a process may
    open descriptors.
    """
    return penstock.load(path)


def recorded_spread(entry: Entry, kernels: Kernels) -> float | None:
    """By how much LiteRT's *kernels* differ from its optimised ones over all cases of a network;
    None: not recorded.
    """
    name = {"reference": "reference_vs_builtin", "default": "xnnpack_vs_builtin"}[kernels]
    found: float | None = ((entry["golden"].get("agreement") or {}).get(name) or {}).get("max_abs")
    return found


def litert_of(entry: Entry, arrays: Any, cases: list[dict[str, Any]], kernels: Kernels) -> LiteRT:
    """LiteRT on a file of the corpus, computing only what is not known from the recording."""
    if CORPUS is None:
        raise FileNotFoundError(NO_CORPUS)
    same = recorded_spread(entry, kernels) == 0
    return LiteRT(CORPUS / "models" / entry["file"], arrays, cases, kernels, as_out=same)


def rule(entry: Entry) -> Rule:
    """How the outputs of an entry are compared."""
    agreement = entry["golden"].get("agreement") or {}
    kernels = (
        agreement.get("reference_vs_builtin") or agreement.get("optimised_vs_unoptimised") or {}
    )
    return Rule(
        disagreement=kernels.get("max_abs"),
        steps={int(k): float(v) for k, v in (entry.get("float_output_step") or {}).items()},
        dynamic_range="dynamic-range" in entry["dtype_scheme"],
        detection="CUSTOM:TFLite_Detection_PostProcess" in entry["ops"],
    )


def shapes(
    model: penstock.Model, signature: str | None, resize: dict[str, list[int]] | None
) -> dict[str, tuple[int, ...]] | None:
    if not resize:
        return None
    names = (
        [name for name, _ in model.signatures[signature].inputs]
        if signature
        else [o.name for o in model.inputs]
    )
    return {(k if signature else names[int(k)]): tuple(v) for k, v in resize.items()}


def check_labels(case: dict[str, Any], got: Sequence[NDArray]) -> None:
    if "expected_top1" in case:
        assert int(np.argmax(got[0].reshape(-1))) == case["expected_top1"], case["expected_label"]
    for rank, wanted in enumerate(case.get("top_detections", [])):
        assert int(got[1][0, rank]) == wanted["cls"], wanted["label"]


Kernels: TypeAlias = Literal["reference", "default"]
"""LiteRT's reference kernels, or what it runs by itself (XNNPACK, where that takes an
operation).
"""

RECORDED: Final[dict[Kernels, str]] = {"reference": "ref", "default": "xnn"}


class LiteRT:
    """LiteRT's outputs of the last of *cases*, recorded or computed by itself, once each; None
    where it cannot. *as_out*: they are known to be those of the optimised kernels, bit for bit.
    """

    _computed: ClassVar[dict[tuple[Path, str, Kernels], list[NDArray] | None]] = {}

    def __init__(
        self,
        path: Path,
        arrays: Any,
        cases: list[dict[str, Any]],
        kernels: Kernels = "reference",
        *,
        as_out: bool = False,
    ) -> None:
        self.path, self.arrays, self.cases, self.kernels = path, arrays, cases, kernels
        self._as_out = as_out

    def __call__(self) -> list[NDArray] | None:
        if self.path.suffix != ".tflite":
            return None
        case = self.cases[-1]
        keys = [f"{case['id']}/{RECORDED[self.kernels]}/{k}" for k in case["outputs"]]
        if all(k in self.arrays for k in keys):
            return [self.arrays[k] for k in keys]
        if self._as_out:
            return [self.arrays[f"{case['id']}/out/{k}"] for k in case["outputs"]]
        key = self.path, case["id"], self.kernels
        if key not in self._computed:
            self._computed[key] = self._run()
        return self._computed[key]

    def _run(self) -> list[NDArray] | None:
        litert = pytest.importorskip(
            "ai_edge_litert.interpreter", reason="LiteRT is needed as judge"
        )
        try:
            if self.kernels == "reference":
                interpreter = _reference_interpreter(litert, self.path)
            else:
                interpreter = litert.Interpreter(str(self.path), num_threads=1)
            outputs: list[NDArray] = []
            for position, case in enumerate(self.cases):
                outputs = invoke(interpreter, case, self.arrays, first=position == 0)
        except (ValueError, RuntimeError):
            return None
        return outputs


def _reference_interpreter(litert: Any, path: Path) -> Any:
    """LiteRT with its reference kernels. Its table of them lacks the later versions of
    DEPTH_TO_SPACE, which compute the same: where it refuses one, the file's operator codes are
    taken for version 1.
    """
    kernels = litert.OpResolverType.BUILTIN_REF
    content = path.read_bytes()
    try:
        return litert.Interpreter(model_content=content, experimental_op_resolver_type=kernels)
    except ValueError as error:
        if "DEPTH_TO_SPACE" not in str(error):
            raise
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(content)
    for code in model.operatorCodes:
        if code.builtinCode == schema.BuiltinOperator.DEPTH_TO_SPACE:
            code.version = 1
    builder = flatbuffers.Builder(len(content))
    builder.Finish(model.Pack(builder), b"TFL3")
    return litert.Interpreter(
        model_content=bytes(builder.Output()), experimental_op_resolver_type=kernels
    )


def invoke(interpreter: Any, case: dict[str, Any], arrays: Any, *, first: bool) -> list[NDArray]:
    """The outputs of one case on an interpreter, LiteRT's or Penstock's; the *first* of a group
    sets the shapes.
    """
    given = {k: arrays[f"{case['id']}/in/{k}"] for k in case["inputs"]}
    if "signature" in case:
        results = interpreter.get_signature_runner(case["signature"])(**given)
        return [results[k] for k in case["outputs"]]
    details = interpreter.get_input_details()
    if first:
        for k, array in given.items():
            if tuple(details[int(k)]["shape"]) != array.shape:
                interpreter.resize_tensor_input(details[int(k)]["index"], array.shape)
        interpreter.allocate_tensors()
    for k, array in given.items():
        interpreter.set_tensor(details[int(k)]["index"], array)
    interpreter.invoke()
    outputs = interpreter.get_output_details()
    return [interpreter.get_tensor(outputs[int(k)]["index"]).copy() for k in case["outputs"]]
