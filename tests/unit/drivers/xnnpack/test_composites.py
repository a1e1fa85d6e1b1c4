"""Attributes of composites that are made to keep whoever reads them."""

from __future__ import annotations

import pytest

from penstock.driverkit.site import make_sites
from penstock.drivers.xnnpack import support
from penstock.ir import Attributes, DType, ModelBuilder
from tests.support_xnnpack import needs_litert

pytestmark = needs_litert

SHAPE = (1, 2, 2, 2)


def doubling(depth: int) -> bytes:
    """A FlexBuffer of *depth* vectors, each of which has the one before it twice."""
    content = bytearray([0, 0])
    at, kind = 1, 40
    for _ in range(depth):
        content += bytes([2])
        here = len(content)
        # Offsets to a child count back from where they stand.
        content += bytes([here - at, here + 1 - at, kind, kind])
        at = here
    content += bytes([len(content) - at, kind, 1])
    return bytes(content)


def attends_rightly(options: bytes) -> bool:
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, SHAPE, "x")
    inner = b.subgraph()
    made = inner.operation("NEG", [inner.input(DType.FLOAT32, SHAPE)], [(DType.FLOAT32, SHAPE)])
    attributes = Attributes(
        name=support.ATTENTION,
        decomposition_subgraph_index=b.add_subgraph(inner.finish(made)),
        composite_attributes=options,
    )
    model = b.build(b.operation("STABLEHLO_COMPOSITE", [x], [(DType.FLOAT32, SHAPE)], attributes))
    (site,) = make_sites(model)
    return support._attends_rightly(site)


@pytest.mark.parametrize(("scale", "right"), [(0.5, True), (0.1, False), (None, False)])
def test_attention_scale_of_32_bits_is_supported(scale: float | None, right: bool) -> None:
    flexbuffers = pytest.importorskip("flatbuffers.flexbuffers")
    given = {"other": 1} if scale is None else {"scale": scale}
    assert attends_rightly(bytes(flexbuffers.Dumps(given))) is right


def test_attention_options_with_exponentially_nested_vectors_are_refused() -> None:
    """Written out they would have more elements than there are atoms."""
    flexbuffers = pytest.importorskip("flatbuffers.flexbuffers")
    assert str(flexbuffers.Loads(doubling(3))).count("[") == 2**4 - 1
    assert attends_rightly(doubling(60)) is False


@pytest.mark.parametrize("content", [b"", b"\0", b"\xff" * 64, bytes(1 << 17)])
def test_invalid_attention_options_are_not_supported(content: bytes) -> None:
    assert attends_rightly(content) is False
