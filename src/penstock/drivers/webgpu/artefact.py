"""The payloads of the cache files: shaders with a manifest, and the constants."""

# Annotations are objects here, not text: msgspec compiles the text of a manifest's fields when it
# first reads one, which takes several times as long as to read it.

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.driverkit.artefact import Ports, framed, unframed
from penstock.drivers.webgpu.calls import (
    ALIGNMENT,
    MOST_BINDINGS,
    MOST_THREADS,
    Binding,
    Call,
    Layout,
)
from penstock.errors import GeneralFailure

SCHEMA: Final = 5
"""Increased when the printer writes other shaders for the same model, or another file."""

MAX_MEMORY: Final = 1 << 40


class Manifest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A compiled model: its shaders, the kernels in their order, and its memory.

    *engine* is the version of wgpu and of the adapter's driver that it was tried with. *constants*
    is the number of bytes of the data file. *numbers* are the contents of the kernels' uniforms.
    *sketch* is what kernels are printed from with threads of other shapes; *tuned* is the adapter
    that their shapes were measured on, "" for the default shapes. *failures* are the messages of
    the flags, one byte each, that are the last of the layout's outputs: a run has failed if its
    flag is set.
    """

    schema: int
    engine: str
    ports: Ports
    shaders: tuple[str, ...]
    calls: tuple[Call, ...]
    layout: Layout
    constants: int
    failures: tuple[str, ...] = ()
    numbers: bytes = b""
    sketch: bytes = b""
    tuned: str = ""


def pack(manifest: Manifest, constants: memoryview) -> tuple[Sequence[bytes], Sequence[memoryview]]:
    """The contents of the model files and of the data files."""
    return [framed(manifest)], [constants]


def unpack(model: memoryview, data: memoryview) -> Manifest:
    """The manifest. Raises `GeneralFailure` for contents that nobody packs."""
    manifest, rest = unframed(model, Manifest, SCHEMA)
    if rest.nbytes:
        raise GeneralFailure("the artefact has bytes behind its manifest")
    if manifest.constants != data.nbytes:
        raise GeneralFailure("the artefact's constants are not of the length that it says")
    layout = manifest.layout
    sizes = {
        "memory": layout.memory,
        "constants": manifest.constants,
        "numbers": len(manifest.numbers),
    }
    computed = sum(source < 0 for source in manifest.ports.forwards) + len(manifest.failures)
    if not 0 <= layout.memory <= MAX_MEMORY:
        raise GeneralFailure(f"the artefact asks for {layout.memory} bytes of memory")
    whole = (
        len(layout.inputs) == len(manifest.ports.inputs)
        and len(layout.outputs) == computed
        and all(_fits(call, len(manifest.shaders), sizes) for call in manifest.calls)
        and _inside(*layout.results, layout.memory)
        and all(_inside(offset, 0, layout.memory) for offset in layout.inputs)
        and all(layout.results[0] <= offset <= sum(layout.results) for offset in layout.outputs)
    )
    if not whole:
        raise GeneralFailure("the artefact's kernels or ports lie outside its memory")
    return manifest


def _fits(call: Call, shaders: int, sizes: dict[str, int]) -> bool:
    stored = sum(b.buffer != "numbers" for b in call.bindings)
    few = stored <= MOST_BINDINGS and len(call.bindings) <= stored + 1
    few = few and 1 <= call.threads <= MOST_THREADS and all(1 <= g <= 65_535 for g in call.groups)
    return 0 <= call.shader < shaders and few and all(_bound(b, sizes) for b in call.bindings)


def _bound(binding: Binding, sizes: dict[str, int]) -> bool:
    aligned = binding.offset % ALIGNMENT == 0 and binding.size > 0 and binding.size % 4 == 0
    return aligned and _inside(binding.offset, binding.size, sizes[binding.buffer] + 3)


def _inside(offset: int, size: int, whole: int) -> bool:
    return offset >= 0 and size >= 0 and offset + size <= whole
