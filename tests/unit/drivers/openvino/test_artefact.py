"""The payloads of the cache files: constants apart, put together again, and nothing else
accepted.
"""

from __future__ import annotations

import struct

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock.driverkit.artefact import Port, Ports, interface_of
from penstock.drivers.openvino import artefact
from penstock.errors import GeneralFailure
from penstock.ir import NDArray

PORTS = Ports((Port("x", "float32", (2, 3)),), (Port("y", "int8", ()),), (-1,), True)


def constant(seed: int, count: int = 300) -> NDArray:
    drawn: NDArray = np.random.default_rng(seed).standard_normal(count).astype(np.float32)
    return drawn


def packed(parts: list[bytes], constants: list[NDArray]) -> tuple[bytes, bytes]:
    return artefact.pack(parts, constants, PORTS, "engine 1", "optimised")


def test_constants_lie_apart_and_come_back() -> None:
    a, b = constant(1), constant(2, 999)
    part = b"head" + a.tobytes() + b"between" + b.tobytes() + b"tail"
    model, data = packed([part], [a, b])
    assert data == a.tobytes() + b.tobytes()
    assert len(model) < artefact.SMALLEST_CONSTANT
    manifest, parts = artefact.unpack(memoryview(model), memoryview(data))
    assert [p.tobytes() for p in parts] == [part]
    assert (manifest.ports, manifest.engine, manifest.form) == (PORTS, "engine 1", "optimised")


def test_a_constant_of_several_parts_is_kept_once() -> None:
    a = constant(1)
    parts = [b"1" + a.tobytes(), b"<xml/>", a.tobytes() + b"3"]
    model, data = packed(parts, [a])
    assert data == a.tobytes()
    assert [p.tobytes() for p in artefact.unpack(memoryview(model), memoryview(data))[1]] == parts


def test_small_constants_stay_where_they_are() -> None:
    a = constant(1, 20)
    assert packed([a.tobytes()], [a])[1] == b""


def test_constants_that_were_transformed_stay_where_they_are() -> None:
    a = constant(1)
    assert artefact.find_constants((a * 2).tobytes(), [a]) == []


def test_unpacked_parts_are_aligned_to_64_bytes() -> None:
    model, data = packed([b"x" * 100], [])
    assert artefact.unpack(memoryview(model), memoryview(data))[1][0].ctypes.data % 64 == 0


@given(st.lists(st.one_of(st.binary(max_size=40), st.integers(0, 3)), max_size=8), st.booleans())
def test_unpack_returns_the_packed_parts(pieces: list[bytes | int], again: bool) -> None:
    constants = [constant(seed, 256 + seed) for seed in range(4)]
    part = b"".join(p if isinstance(p, bytes) else constants[p].tobytes() for p in pieces)
    parts = [part, part[::2], part] if again else [part]
    model, data = packed(parts, constants)
    assert [p.tobytes() for p in artefact.unpack(memoryview(model), memoryview(data))[1]] == parts


@given(st.binary(max_size=200), st.binary(max_size=50))
def test_other_bytes_are_refused(model: bytes, data: bytes) -> None:
    with pytest.raises(GeneralFailure):
        artefact.unpack(memoryview(model), memoryview(data))


WRONG: dict[str, dict[str, object]] = {
    "another schema": {"schema": 1},
    "no parts": {"parts": ()},
    "two parts": {"parts": (5, 5)},
    "a negative part": {"parts": (-1,)},
    "more than there is": {"parts": (1 << 40,)},
    "cuts that overlap": {"cuts": ((0, 0, 4), (2, 0, 4))},
    "a cut outside the data": {"cuts": ((0, 8, 4),)},
    "a cut behind the end": {"parts": (14,), "cuts": ((12, 0, 4),)},
    "the same data again and again": {"parts": (34,), "cuts": tuple((k, 0, 8) for k in (0, 8, 16))},
    "a forward of no input": {"ports": Ports((), PORTS.outputs, (0,), True)},
    "forwards that are missing": {"ports": Ports((), PORTS.outputs, (), True)},
}


@pytest.mark.parametrize("name", WRONG)
def test_malformed_manifests_are_refused(name: str) -> None:
    manifest = artefact.Manifest(2, "engine", "optimised", PORTS, (10,), ())
    wrong = msgspec.msgpack.encode(msgspec.structs.replace(manifest, **WRONG[name]))
    model = struct.pack("<I", len(wrong)) + wrong + bytes(10)
    with pytest.raises(GeneralFailure):
        artefact.unpack(memoryview(model), memoryview(bytes(8)))


def test_a_port_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(GeneralFailure, match="float1024"):
        interface_of(Ports((Port("x", "float1024", ()),), (), (), False))
