"""Which vendor extensions operations need, and whether a device offers them (NNAPI section 8.6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from penstock.hal import Capabilities, Extension
from penstock.ir import ExtensionType, Model, Operation, Subgraph
from penstock.ir.operand import EXTENSION
from penstock.ir.operation import extension_of
from penstock.ir.validate import callees_first, subgraph_references

Needs: TypeAlias = "Mapping[str, frozenset[ExtensionType]]"
"""Extensions by name, each with those of its operand types that occur, without their data."""


def extension_needs(model: Model) -> dict[int, Needs]:
    """What operations of the entry subgraph need of extensions: by themselves, by the types of
    their operands, and by what is in the subgraphs that they refer to. Operations that need nothing
    are left out.
    """
    if not any(map(_has_extensions, model.subgraphs)):
        return {}
    graphs = model.subgraphs
    entered = [sorted({t for o in g.operations for t in subgraph_references(o)}) for g in graphs]
    known: dict[int, Needs] = {}
    found: dict[int, Needs] = {}
    for index in callees_first(entered):
        every = [_needs(graphs[index], operation, known) for operation in graphs[index].operations]
        known[index] = _joined(every)
        if index == model.main:
            found = dict(enumerate(every))
    return {index: needs for index, needs in found.items() if needs}


def uses_extensions(model: Model) -> bool:
    """Whether anything in *model* is of an extension."""
    return any(map(_has_extensions, model.subgraphs))


def extension_refusal(needs: Needs, capabilities: Capabilities) -> str:
    """Why a device with *capabilities* is not asked for an operation that needs these extensions;
    empty: it is.
    """
    offered = {extension.name: extension for extension in capabilities.extensions}
    for name, kinds in needs.items():
        if name not in offered:
            return f"the device does not offer the extension {name}"
        if reason := _type_refusal(offered[name], kinds):
            return reason
    return ""


def _type_refusal(extension: Extension, kinds: Iterable[ExtensionType]) -> str:
    for kind in kinds:
        mine = extension.type_of(kind.code)
        if mine is None:
            return f"the device's extension {extension.name} has no operand type {kind.code}"
        if (mine.byte_size, mine.is_tensor) != (kind.byte_size, kind.is_tensor):
            return f"the device's operand type {kind.name} is another one"
    return ""


def _has_extensions(subgraph: Subgraph) -> bool:
    return any(o.extension is not None for o in subgraph.operands) or any(
        o.type == EXTENSION for o in subgraph.operations
    )


def _needs(graph: Subgraph, operation: Operation, known: Mapping[int, Needs]) -> Needs:
    """What *operation* needs; *known* has what the subgraphs need that it enters."""
    own: dict[str, frozenset[ExtensionType]] = {}
    if (name := extension_of(operation)) is not None:
        own[name] = frozenset()
    for index in (*operation.inputs, *operation.outputs):
        if (kind := graph.operands[index].extension) is not None:
            plain = replace(kind, data=b"")
            own[kind.extension] = own.get(kind.extension, frozenset()) | {plain}
    return _joined([own, *(known[index] for index in subgraph_references(operation))])


def _joined(several: Sequence[Needs]) -> Needs:
    found: dict[str, frozenset[ExtensionType]] = {}
    for needs in several:
        for name, kinds in needs.items():
            found[name] = found.get(name, frozenset()) | kinds
    return found
