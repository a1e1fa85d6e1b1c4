"""CRC-32C's polynomial from 0 without inversion, against its definition bit by bit."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st

from penstock.blobcache.flat import _byte_table, checksum


def bit_by_bit(data: bytes) -> int:
    """The remainder of the bits, least significant first, after division by the polynomial."""
    crc = 0
    for byte in data:
        for bit in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if (crc ^ byte >> bit) & 1 else 0)
    return crc


@pytest.mark.parametrize("size", [0, 1, 3, 4, 255, 256, 1023, 1024, 1025, 4095, 4096, 4097, 20_001])
def test_checksum_equals_its_definition(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert checksum(data) == bit_by_bit(data)
    assert checksum(memoryview(data)) == checksum(bytearray(data)) == checksum(data)


@given(st.binary(max_size=600))
def test_checksum_of_any_bytes_equals_its_definition(data: bytes) -> None:
    assert checksum(data) == bit_by_bit(data)


def test_the_table_is_crc_32cs() -> None:
    crc = 0xFFFFFFFF
    for byte in b"123456789":
        crc = _byte_table()[(crc ^ byte) & 0xFF] ^ crc >> 8
    assert crc ^ 0xFFFFFFFF == 0xE3069283  # the check value of catalogues of CRCs


def test_the_fast_way_agrees_with_the_slow_way_for_each_single_bit() -> None:
    zeros = bytes(1100)
    for bit in range(0, 8 * len(zeros), 7):
        data = bytearray(zeros)
        data[bit // 8] = 1 << bit % 8
        # Zeros in front change nothing, so the tail alone goes the slow way.
        assert checksum(data) == checksum(data[bit // 8 :]) != 0


def test_a_bit_flipped_anywhere_changes_it() -> None:
    data = bytearray(random.Random(1).randbytes(100_000))
    right = checksum(data)
    for bit in random.Random(2).sample(range(8 * len(data)), 50):
        data[bit // 8] ^= 1 << bit % 8
        assert checksum(data) != right
        data[bit // 8] ^= 1 << bit % 8
