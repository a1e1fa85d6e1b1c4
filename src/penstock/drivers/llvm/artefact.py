"""The payloads of the cache files: object code with a manifest, and the constants.

The model file has a manifest (its length in 4 bytes, little-endian, then msgpack) and an ELF
object. The data file has the packed constants, at the offsets that the code expects; the code reads
them where the verified copy of the file is mapped.
"""

# Annotations are objects here, not text: msgspec compiles the text of a manifest's fields when it
# first reads one, which takes several times as long as to read it.

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.driverkit.artefact import Ports, framed, unframed
from penstock.errors import GeneralFailure

SCHEMA: Final = 15
"""Increased when the generator writes other code for the same model, or another frame or file."""

MAX_ARENA: Final = 1 << 40


class Manifest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What belongs to the object code of one model.

    *engine* is the version of llvmlite that compiled it. *instructions* is the name of the
    instruction set, *features* what the code uses of the processor. *arena* and *constants* are
    sizes in bytes. *kernels* has for each kernel, in their order, its template, its name and the
    operations of the model that it computes; *functions* the names of their code; *work* their
    multiply-accumulates and the types of their sums. *shared* says whether threads share a run,
    *images* how many images a run computes, one after another, and *estimate_ns* about how long it
    takes on one thread. *failures* are the messages of the flags, one byte each, whose
    ports follow those of the outputs: a run has failed if its flag is set.
    """

    schema: int
    engine: str
    ports: Ports
    instructions: str
    features: tuple[str, ...]
    arena: int
    constants: int
    kernels: tuple[tuple[str, str, tuple[int, ...]], ...]
    functions: tuple[str, ...]
    work: tuple[tuple[int, str], ...]
    shared: bool
    images: int
    estimate_ns: int
    failures: tuple[str, ...] = ()


def pack(
    manifest: Manifest, code: bytes, constants: memoryview
) -> tuple[Sequence[bytes], Sequence[memoryview]]:
    """The contents of the model files and of the data files."""
    return [framed(manifest, code)], [constants]


def unpack(model: memoryview, data: memoryview) -> tuple[Manifest, memoryview]:
    """The manifest and the object code. Raises `GeneralFailure` for other contents."""
    manifest, code = unframed(model, Manifest, SCHEMA)
    if manifest.constants != data.nbytes:
        raise GeneralFailure("the artefact's constants are not of the length that it says")
    if not 0 <= manifest.arena <= MAX_ARENA:
        raise GeneralFailure(f"the artefact asks for {manifest.arena} bytes of memory")
    return manifest, code
