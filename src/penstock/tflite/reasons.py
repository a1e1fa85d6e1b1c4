"""Why a model does not run, in LiteRT's words where they are known, then in Penstock's."""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import ModelError, PlacementError
from penstock.loaders.tflite.catalog import SubgraphEntry
from penstock.tflite import texts
from penstock.tflite.loading import LoadedFile

PLACE: Final = re.compile(
    r"subgraph (?P<subgraph>\d+), (?P<kind>operation|operator) (?P<index>\d+)\b"
)
"""How an error of the loader (operator: the file's number) or of a later stage (operation: the
model's) begins.
"""


def reason(error: Exception, catalog: SubgraphEntry, subgraph: int, file: LoadedFile) -> str:
    """The text of the RuntimeError for *error*, met in one subgraph of *file*: an operator without
    a kernel, or one that cannot be prepared, or a graph that contradicts itself.
    """
    text = str(error)
    if isinstance(error, PlacementError | ModelError):
        for index, operator in enumerate(catalog.operators):
            if operator.custom and re.search(rf"CUSTOM:{re.escape(operator.name)}(?!\w)", text):
                return f"{texts.unresolved(operator.name, index)}\n{text}"
    if isinstance(error, texts.INCONSISTENCIES):
        return f"{texts.INCONSISTENT}\n{text}"
    place = _operator(error, subgraph, file)
    if place is None or not 0 <= place < len(catalog.operators):
        return text
    return f"{texts.unprepared(catalog.operators[place].name, place)}\n{text}"


def _operator(error: Exception, subgraph: int, file: LoadedFile) -> int | None:
    """The file's number of the operator that an error is about, where it is one of *subgraph*."""
    found = PLACE.match(str(error))
    if found is None or int(found["subgraph"]) != subgraph:
        return None
    index = int(found["index"])
    if found["kind"] == "operator":
        return index
    try:
        operations = file.model.subgraphs[subgraph].operations
    except ModelError:
        return None
    origin = operations[index].origin if index < len(operations) else None
    return None if origin is None else origin.index
