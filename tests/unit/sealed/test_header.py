"""The 256 bytes at the start of each cache file, as docs/cache-format.md lays them out."""

from __future__ import annotations

import hashlib
import hmac
import struct

from hypothesis import given, strategies as st
from msgspec.structs import replace

from penstock.sealed import HEADER_BYTES, Header
from penstock.sealed.header import Kind, identity, is_sealed

KEY = b"k" * 32
HEADER = Header(
    kind=Kind.DATA,
    number=3,
    models=2,
    datas=4,
    sequence=0x0102030405060708,
    length=0x1112131415161718,
    entry=b"e" * 16,
    registry=b"r" * 16,
    token=b"t" * 32,
    binding=b"b" * 32,
    driver=identity("driver"),
    version=identity("1.0"),
    root=b"m" * 32,
)


def test_every_field_stands_where_the_format_says() -> None:
    packed = HEADER.pack(KEY)
    assert len(packed) == HEADER_BYTES == 256
    assert packed[:8] == b"\x89PNSEAL\n"
    assert struct.unpack_from("<H4BH", packed, 8) == (1, 2, 3, 2, 4, 0)
    assert struct.unpack_from("<QQ", packed, 16) == (0x0102030405060708, 0x1112131415161718)
    assert packed[32:64] == b"e" * 16 + b"r" * 16
    assert packed[64:128] == b"t" * 32 + b"b" * 32
    assert packed[128:160] == hashlib.sha256(b"driver").digest()
    assert packed[160:192] == hashlib.sha256(b"1.0").digest()
    assert packed[192:224] == b"m" * 32
    assert packed[224:] == hmac.digest(KEY, b"penstock file seal\0" + packed[:224], "sha256")


def test_unpacking_gives_the_header_back() -> None:
    assert Header.unpack(HEADER.pack(KEY)) == HEADER
    assert Header.unpack(replace(HEADER, format=7).pack(KEY)) == replace(HEADER, format=7)


def test_only_the_key_that_sealed_it_accepts_it() -> None:
    assert is_sealed(HEADER.pack(KEY), KEY)
    assert not is_sealed(HEADER.pack(KEY), b"K" * 32)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_header_or_none(content: bytes) -> None:
    for candidate in (content, (b"\x89PNSEAL\n" + content + bytes(256))[:256]):
        header = Header.unpack(candidate)
        assert header is None or len(candidate) == HEADER_BYTES
        if header is not None:
            assert header.place


def test_places_are_named() -> None:
    assert HEADER.place == "data file 3"
    assert replace(HEADER, kind=9).place == "kind 9 file 3"
