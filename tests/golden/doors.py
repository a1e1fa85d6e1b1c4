"""The doors through which users run a model, each with the accuracy class that it promises."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, get_args

import numpy as np
from typer.testing import CliRunner

import penstock
from penstock import tflite
from penstock.cli.application import app
from penstock.export.tflite import write
from penstock.hal import AccuracyClass
from penstock.ir import NDArray
from tests.conftest import CORPUS, NO_CORPUS
from tests.golden.arrays import golden
from tests.golden.cases import (  # fmt: skip
    Entry,
    case_groups,
    check_labels,
    given_to_onnx,
    invoke,
    load,
    rule,
    shapes,
)
from tests.golden.comparison import Case, compare
from tests.golden.detections import detecting
from tests.golden.engine_rules import Judged, judge, judged_of

Cases: TypeAlias = "Sequence[dict[str, Any]]"
Run: TypeAlias = "Callable[[Path | bytes, Entry, Cases], Iterator[list[NDArray]]]"

DEFAULT: Final[AccuracyClass] = "faithful"


@dataclass(frozen=True)
class Door:
    """One way to run a file. *run* gives all outputs of each of the cases of a group, in order, of
    the file or its bytes; *accuracy* is the class that they are judged by. *as_builtin*: they are
    LiteRT's own kernels', as recorded.
    """

    name: str
    accuracy: AccuracyClass
    run: Run
    as_builtin: bool = False
    takes_onnx: bool = True
    resizes: bool = True

    def takes(self, entry: Entry, cases: Cases) -> bool:
        """Whether the group can go this way: an interpreter reads `.tflite` alone, and the command
        line gives no input another size than its file fixes.
        """
        if not self.takes_onnx and entry["format"] == "onnx":
            return False
        wanted = cases[0].get("resize_inputs", {})
        return self.resizes or not any(
            fixed not in {-1, size}
            for position, shape in wanted.items()
            for fixed, size in zip(_declared(entry["inputs"][int(position)]), shape, strict=True)
        )


def _declared(told: Mapping[str, Any]) -> Sequence[int]:
    shape: Sequence[int] = told.get("shape_signature") or told["shape"]
    return shape


def compiled(
    policy: penstock.Policy | None, source: Path | bytes, entry: Entry, cases: Cases
) -> Iterator[list[NDArray]]:
    """`penstock.compile` with every device that is usable here."""
    model = load(source) if isinstance(source, Path) else penstock.load(source)
    signature = cases[0].get("signature")
    sizes = shapes(model, signature, cases[0].get("resize_inputs"))
    by_name = signature is not None or entry["format"] == "onnx"
    with penstock.compile(
        model, signature=signature, shapes=sizes, policy=policy, cache=False
    ) as net:
        for case in cases:
            given = inputs_of(entry, case)
            outputs = net.run(given if by_name else list(given.values()))
            names = case["outputs"] if by_name else range(len(outputs))
            yield [np.array(outputs[name]) for name in names]


AS_BUILTIN: Final = tflite.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
"""Runs on LiteRT's own kernels, and gives what they do."""


def interpreted(
    resolver: tflite.OpResolverType, source: Path | bytes, entry: Entry, cases: Cases
) -> Iterator[list[NDArray]]:
    """`penstock.tflite.Interpreter`."""
    arrays = {f"{c['id']}/in/{k}": a for c in cases for k, a in inputs_of(entry, c).items()}
    path, content = (source, None) if isinstance(source, Path) else (None, source)
    with tflite.Interpreter(
        path,
        content,
        cache=False,
        experimental_op_resolver_type=resolver,
        # LiteRT's own kernels give other sums on two threads than on the one that was recorded.
        num_threads=1 if resolver is AS_BUILTIN else None,
    ) as interpreter:
        for position, case in enumerate(cases):
            every = case["outputs"]
            if "signature" not in case:
                every = [str(k) for k in range(len(interpreter.get_output_details()))]
            yield invoke(interpreter, {**case, "outputs": every}, arrays, first=position == 0)


def commanded(
    options: Sequence[str], source: Path | bytes, entry: Entry, cases: Cases
) -> Iterator[list[NDArray]]:
    """`penstock run`, of arrays to arrays. Variables begin anew with each command: of a network
    that has some the first case alone.
    """
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        path = source if isinstance(source, Path) else folder / "model.tflite"
        if isinstance(source, bytes):
            path.write_bytes(source)
        model = load(path) if isinstance(source, Path) else penstock.load(source)
        for case in cases[:1] if model.entry.states else cases:
            given = inputs_of(entry, case)
            more: list[str] = []
            sizes = shapes(model, case.get("signature"), case.get("resize_inputs")) or {}
            for name, shape in sizes.items():
                more += ["--shape", f"{name}={','.join(map(str, shape))}"]
            if (signature := case.get("signature")) is not None:
                names = [name for name, _ in model.signatures[signature].inputs]
                given = {name: given[name] for name in names}
                more += ["--signature", signature]
            elif entry["format"] == "onnx":
                given = {operand.name: given[operand.name] for operand in model.inputs}
            files = [folder / f"{k}.npy" for k in range(len(given))]
            for file, array in zip(files, given.values(), strict=True):
                plain = array.astype("S") if array.dtype.hasobject else array
                np.save(file, plain, allow_pickle=False)
            out = folder / "out.npz"
            words = ["run", path, *files, "--out", out, "--task", "outputs", "--no-cache"]
            result = CliRunner().invoke(app, [*map(str, words), *options, *more])
            assert result.exit_code == 0, result.output
            with np.load(out, allow_pickle=False) as found:
                every = [found[name] for name in found.files]
            if signature is not None:
                order = [name for name, _ in model.signatures[signature].outputs]
                every = [every[order.index(name)] for name in case["outputs"]]
            yield every


DOORS: Final = [
    *(
        Door(f"compile-{name}", name, partial(compiled, penstock.Policy(accuracy=name)))
        for name in get_args(AccuracyClass)
        if name != DEFAULT
    ),
    Door("compile", DEFAULT, partial(compiled, None)),
    Door("command", DEFAULT, partial(commanded, ()), resizes=False),
    Door("command-exact", "exact", partial(commanded, ("--accuracy", "exact")), resizes=False),
    *(
        Door(
            f"interpreter-{resolver.name}",
            "exact" if resolver is tflite.OpResolverType.BUILTIN_REF else DEFAULT,
            partial(interpreted, resolver),
            resolver is AS_BUILTIN,
            takes_onnx=False,
        )
        for resolver in tflite.OpResolverType
    ),
]


def check_door(door: Door, entry: Entry, cases: list[dict[str, Any]]) -> int:
    """Judges a group of cases that went through *door* by the rule of its class; how many were.
    `AssertionError` where an output is farther off.
    """
    if CORPUS is None:
        raise FileNotFoundError(NO_CORPUS)
    arrays, count = golden(CORPUS / "models" / entry["golden"]["file"]), 0
    for every in door.run(CORPUS / "models" / entry["file"], entry, cases):
        case = cases[count]
        count += 1
        got = every
        if "signature" not in case and entry["format"] == "tflite":
            got = [every[int(k)] for k in case["outputs"]]
        judged = judged_of(entry, arrays, cases[:count])
        try:
            _judge(door, got, judged)
        except AssertionError:
            if door.accuracy != DEFAULT or not _detects(door, entry, cases, count - 1):
                raise
    return count


def _judge(door: Door, got: Sequence[NDArray], wanted: Judged) -> None:
    if door.as_builtin:
        same = replace(rule(wanted.entry), disagreement=0.0)
        compare(got, Case(wanted.out, lambda: None), same)
        check_labels(wanted.case, got)
        return
    if door.accuracy != "stepwise":
        judge(got, wanted, door.accuracy)
        return
    # Where steps may add up no answer is promised; a quarter of an output's own size is not steps.
    case = {k: v for k, v in wanted.case.items() if k != "expected_top1"}
    judge(got, replace(wanted, case=case), "relaxed")


def _detects(door: Door, entry: Entry, cases: Cases, position: int) -> bool:
    """Whether *entry* ends in a list of detections, in which boxes change places for one step of a
    score; what it is made of is judged then. Raises `AssertionError` where that is too far off.
    """
    if CORPUS is None or entry["format"] != "tflite":
        return False
    lists = detecting(load(CORPUS / "models" / entry["file"]))
    if lists is None:
        return False
    every = [
        list(inputs_of(entry, case).values())
        for group in case_groups(entry).values()
        for case in group
    ]
    outputs = list(door.run(write(lists.model), entry, cases))[position]
    lists.check(outputs, rule(entry), list(inputs_of(entry, cases[position]).values()), every)
    return True


def inputs_of(entry: Entry, case: Mapping[str, Any]) -> dict[str, NDArray]:
    """The recorded inputs of *case*, by the names of the manifest."""
    if CORPUS is None:
        raise FileNotFoundError(NO_CORPUS)
    arrays = golden(CORPUS / "models" / entry["golden"]["file"])
    found = {k: arrays[f"{case['id']}/in/{k}"] for k in case["inputs"]}
    if entry["format"] == "onnx":
        return {k: given_to_onnx(array) for k, array in found.items()}
    return found
