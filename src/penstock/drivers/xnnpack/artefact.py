"""The payload of the cache file: the file that LiteRT reads, behind a manifest.

Only models of one file whose tensors never move are kept: their runs need no more of the model than
its inputs and outputs.
"""

# Annotations are objects here, not text: msgspec compiles the text of a manifest's fields when it
# first reads one, which takes several times as long as to read it.

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

import msgspec

from penstock.driverkit.artefact import Ports, framed, interface_of, opened, ports_of, unframed
from penstock.drivers.xnnpack.interpreter import DEFAULT_THREADS, File
from penstock.drivers.xnnpack.part import Part, State
from penstock.drivers.xnnpack.prepared import XnnpackPreparedModel
from penstock.drivers.xnnpack.state_copies import StateCopies, state_positions
from penstock.errors import GeneralFailure
from penstock.hal import PrepareConfig
from penstock.ir import Model
from penstock.sealed import LoadedEntry

if TYPE_CHECKING:
    from penstock.drivers.xnnpack.device import XnnpackDevice

SCHEMA: Final = 1
"""Increased when the payload has another form."""


class Manifest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What belongs to the file of *part*, whose operands are numbered as in *ports*, inputs first.

    *state* has the positions of the state's arrays among the inputs and among the outputs; None if
    there are not several. *detections* has the outputs of each `DETECTION`. *engine* is the
    device's version.
    """

    schema: int
    engine: str
    ports: Ports
    part: Part
    state: tuple[tuple[int, ...], tuple[int, ...]] | None
    detections: tuple[tuple[int, ...], ...] = ()


def pack(model: Model, file: File, engine: str, detections: Sequence[Sequence[int]] = ()) -> bytes:
    """The payload of the only *file* of *model*."""
    entry, part = model.entry, file.part
    given = {operand: at for at, operand in enumerate(entry.inputs)}
    made = {operand: at + len(given) for at, operand in enumerate(entry.outputs)}
    renumbered = Part(
        part.kernels,
        tuple(given[i] for i in part.inputs),
        tuple(made[i] for i in part.outputs),
        tuple(State(given[s.input], made[s.output], s.name) for s in part.states),
        part.operations,
    )
    # A detection's four outputs are those of the file, which are the model's.
    found = tuple(tuple(made[i] for i in outputs) for outputs in detections)
    state = state_positions(model)
    manifest = Manifest(SCHEMA, engine, ports_of(model), renumbered, state, found)
    return framed(manifest, file.content)


def unpack(content: memoryview) -> tuple[Manifest, bytes]:
    """The manifest and the file. Raises `GeneralFailure` for contents that `pack` cannot write."""
    manifest, file = unframed(content, Manifest, SCHEMA)
    part, ports = manifest.part, manifest.ports
    inputs, outputs = range(len(ports.inputs)), range(len(ports.inputs), _count(ports))
    if not set(part.all_inputs) <= set(inputs) or part.all_outputs != (*outputs,):
        raise GeneralFailure("the artefact's file has other inputs and outputs than its model")
    if manifest.state is not None and not _are_several(manifest.state, ports):
        raise GeneralFailure("the artefact's state is not among its inputs and outputs")
    if not all(len(found) == 4 and set(found) <= set(outputs) for found in manifest.detections):
        raise GeneralFailure("the artefact's detections are not among its outputs")
    return manifest, bytes(file)


def load(
    device: "XnnpackDevice", entry: LoadedEntry, config: PrepareConfig
) -> XnnpackPreparedModel:
    """The prepared model of a verified cache entry. Raises `OtherVersion` and `GeneralFailure`."""
    manifest, content = opened(entry, unpack, lambda: device.version)
    device.count(loads=1)
    file = File(manifest.part, content, config.num_threads or DEFAULT_THREADS, static=True)
    # Requests are checked against the ports alone: a model from the cache has no graph.
    model = cast("Model", interface_of(manifest.ports))
    state = None
    if manifest.state is not None:
        counts = len(manifest.ports.inputs), len(manifest.ports.outputs)
        state = StateCopies(*manifest.state, counts)
    return XnnpackPreparedModel(model, [file], [file.open()], state, manifest.detections)


def _count(ports: Ports) -> int:
    return len(ports.inputs) + len(ports.outputs)


def _are_several(state: tuple[tuple[int, ...], tuple[int, ...]], ports: Ports) -> bool:
    pairs = zip(state, (ports.inputs, ports.outputs), strict=True)
    return all(len(own) > 1 and set(own) <= set(range(len(of))) for own, of in pairs)
