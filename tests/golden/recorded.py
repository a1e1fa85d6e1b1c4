"""The recorded cases of a network in its file's terms, for runs without Penstock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from penstock.ir import NDArray
from tests.conftest import CORPUS
from tests.golden.arrays import golden
from tests.golden.cases import Entry, case_groups, entries
from tests.golden.engine_rules import Judged, judged_of


def judged_cases(entry: Entry) -> Iterator[tuple[list[NDArray], Judged]]:
    """Inputs, and what their outputs are judged by: the first case of each group without signature,
    so that no state is carried. Inputs may have other shapes than the file's where it leaves
    dimensions open.
    """
    if CORPUS is None:
        return
    arrays = golden(CORPUS / "models" / entry["golden"]["file"])
    for cases in case_groups(entry).values():
        case = cases[0]
        if "signature" in case:
            continue
        inputs = [arrays[f"{case['id']}/in/{k}"] for k in case["inputs"]]
        yield inputs, judged_of(entry, arrays, [case])


def cases_of_file(path: Path) -> Iterator[tuple[list[NDArray], Judged]]:
    """`judged_cases` of the network of that file name; none of a file that is not the corpus's."""
    for entry in entries("network", "onnx" if path.suffix == ".onnx" else "tflite"):
        if Path(entry["file"]).name == path.name:
            yield from judged_cases(entry)
