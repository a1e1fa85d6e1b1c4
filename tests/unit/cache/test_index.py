from __future__ import annotations

import hmac
import json
import re

import pytest
from hypothesis import given, strategies as st

from penstock.cache.naming import IndexRecord, pack_record, unpack_record

KEY, TOKEN = bytes(range(32)), bytes(range(32, 64))
RECORD = IndexRecord(
    token=TOKEN.hex(),
    binding=bytes(32).hex(),
    device="lab",
    version="1",
    ingredients={"structure": "abc", "options": "", "device": "läb"},
    models=2,
    datas=1,
    compile_ns=5,
    created=1.5,
    penstock="0.1",
)
PACKED = pack_record(RECORD, KEY)


def test_a_record_comes_back() -> None:
    assert unpack_record(PACKED, KEY, TOKEN) == RECORD


def test_people_can_read_it() -> None:
    assert json.loads(PACKED)["record"]["device"] == "lab"


def test_another_language_can_verify_it() -> None:
    """By docs/cache-directory.md alone."""
    whole = re.fullmatch(rb'{"record":(.*),"seal":"([0-9a-f]{64})"}\n', PACKED)
    assert whole is not None
    seal = hmac.digest(KEY, b"penstock cache index\0" + whole[1], "sha256")
    assert seal.hex().encode() == whole[2]


def test_another_key_or_token_has_another_index() -> None:
    assert unpack_record(PACKED, bytes(32), TOKEN) is None
    assert unpack_record(PACKED, KEY, bytes(32)) is None


def test_no_bit_of_it_can_be_changed() -> None:
    """But for the white space behind it."""
    for at in range(len(PACKED) - 1):
        for bit in range(8):
            changed = bytearray(PACKED)
            changed[at] ^= 1 << bit
            assert unpack_record(bytes(changed), KEY, TOKEN) is None, at


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_bytes_are_a_record_or_none(content: bytes) -> None:
    assert unpack_record(content, KEY, TOKEN) is None


@pytest.mark.parametrize(
    "content",
    [b"[" * 5000, b'{"record": {}, "seal": "\xc3\xa4"}', b'{"record": 1, "seal": 1}', PACKED[:-20]],
)
def test_malformed_index_is_no_record(content: bytes) -> None:
    assert unpack_record(content, KEY, TOKEN) is None


def test_nothing_is_parsed_before_its_seal_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    def parsed(content: memoryview, **_: object) -> None:
        raise AssertionError(bytes(content))

    monkeypatch.setattr("msgspec.json.decode", parsed)
    for content in (PACKED.replace(b"abc", b"abd"), b'{"record":{},"seal":""}'):
        assert unpack_record(content, KEY, TOKEN) is None
    with pytest.raises(AssertionError, match="structure"):
        unpack_record(PACKED, KEY, TOKEN)


def test_an_authentic_record_must_make_sense() -> None:
    for wrong in ({"token": "00"}, {"models": 33}, {"datas": -1}, {"binding": "zz"}):
        fields = {f: getattr(RECORD, f) for f in RECORD.__struct_fields__} | wrong
        assert unpack_record(pack_record(IndexRecord(**fields), KEY), KEY, TOKEN) is None
