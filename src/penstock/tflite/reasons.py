"""Why a model does not run, in LiteRT's words where they are known, then in Penstock's."""

from __future__ import annotations

from penstock.errors import ModelError, PlacementError
from penstock.loaders.tflite.catalog import SubgraphEntry
from penstock.tflite import texts
from penstock.tflite.loading import LoadedFile


def reason(error: Exception, catalog: SubgraphEntry, subgraph: int, file: LoadedFile) -> str:
    """The text of the RuntimeError for *error*, met in one subgraph of *file*: an operator without
    a kernel, or one that cannot be prepared, or a graph that contradicts itself.
    """
    text = str(error)
    if isinstance(error, texts.INCONSISTENCIES):
        return f"{texts.INCONSISTENT}\n{text}"
    place = _operator(error, subgraph, file)
    if place is None or not 0 <= place < len(catalog.operators):
        return text
    operator = catalog.operators[place]
    # No device runs a custom operator that has no kernel.
    lacks_kernel = operator.custom and isinstance(error, PlacementError)
    words = texts.unresolved if lacks_kernel else texts.unprepared
    return f"{words(operator.name, place)}\n{text}"


def _operator(error: Exception, subgraph: int, file: LoadedFile) -> int | None:
    """The file's number of the operator that an error is about, where it is one of *subgraph*."""
    where = error.where if isinstance(error, ModelError | PlacementError) else None
    if where is None or where.subgraph != subgraph:
        return None
    if where.operation is None:
        return where.operator
    try:
        operations = file.model.subgraphs[subgraph].operations
    except ModelError:
        return None
    index = where.operation
    origin = operations[index].origin if index < len(operations) else None
    return None if origin is None else origin.index
