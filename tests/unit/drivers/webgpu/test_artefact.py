"""What a loaded artefact is checked for."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.drivers.webgpu import artefact
from penstock.drivers.webgpu.calls import Binding, Layout
from penstock.errors import GeneralFailure
from penstock.ir import DType
from tests.support_webgpu import elementwise, manifest_of
from tests.unit.drivers.webgpu.test_scalars import of

MANIFEST, CONSTANTS = manifest_of(elementwise([of("neg", DType.FLOAT32)], 8))
(CALL,) = MANIFEST.calls
SIZE = MANIFEST.layout.memory


def unpacked(
    manifest: artefact.Manifest, constants: bytes = CONSTANTS.tobytes()
) -> artefact.Manifest:
    (model,), (data,) = artefact.pack(manifest, memoryview(constants))
    return artefact.unpack(memoryview(model), memoryview(data))


def called(**changes: object) -> artefact.Manifest:
    return replace(MANIFEST, calls=(replace(CALL, **changes),))


def test_an_artefact_is_unpacked_as_it_was_packed() -> None:
    assert unpacked(MANIFEST) == MANIFEST


@pytest.mark.parametrize(
    "manifest",
    [
        called(shader=1),
        called(shader=-1),
        called(groups=(0, 1, 1)),
        called(groups=(65_536, 1, 1)),
        called(bindings=(Binding("memory", SIZE, 256),)),
        called(bindings=(Binding("memory", 0, SIZE + 4),)),
        called(bindings=(Binding("memory", 4, 4),)),
        called(bindings=(Binding("memory", -256, 256),)),
        called(bindings=(Binding("constants", 0, CONSTANTS.nbytes + 4),)),
        called(bindings=CALL.bindings * 5),
        called(bindings=(*CALL.bindings, Binding("numbers", 0, 16))),
        replace(MANIFEST, layout=replace(MANIFEST.layout, inputs=(SIZE + 4,))),
        replace(MANIFEST, layout=replace(MANIFEST.layout, outputs=(0,), results=(256, 256))),
        replace(MANIFEST, layout=replace(MANIFEST.layout, results=(SIZE, 4))),
        replace(MANIFEST, layout=Layout(1 << 50, (0,), (0,), (0, 4))),
        replace(MANIFEST, layout=replace(MANIFEST.layout, inputs=())),
        replace(MANIFEST, schema=MANIFEST.schema + 1),
        replace(MANIFEST, constants=MANIFEST.constants + 1),
        replace(MANIFEST, failures=("more flags than outputs",)),
    ],
)
def test_an_artefact_that_reaches_outside_its_memory_is_refused(
    manifest: artefact.Manifest,
) -> None:
    with pytest.raises(GeneralFailure):
        unpacked(manifest)


def test_bytes_behind_the_manifest_are_refused() -> None:
    (model,), (data,) = artefact.pack(MANIFEST, memoryview(CONSTANTS.tobytes()))
    with pytest.raises(GeneralFailure, match="behind"):
        artefact.unpack(memoryview(model + b"\0"), memoryview(data))
