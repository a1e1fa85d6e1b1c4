"""The loader of object code: what it computes, what it refuses, and what is left when it closes."""

from __future__ import annotations

import ctypes
import platform
import struct
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from penstock.drivers.llvm.backend import compile_object
from penstock.drivers.llvm.isa import RECORDS, Isa
from penstock.drivers.llvm.load import load
from penstock.drivers.llvm.load.elf import parse
from penstock.drivers.llvm.load.relocate import RELOCATIONS, place, relocated
from penstock.errors import ClosedError, GeneralFailure
from tests.checked import does_not_raise
from tests.support_aarch64 import run_code, skip_without_qemu

TEXT: Final = """
@table = private unnamed_addr constant [4 x i32] [i32 3, i32 5, i32 7, i32 11], align 4
@pointers = internal constant [2 x ptr] [ptr @first, ptr @second], align 8
define internal i32 @first(i32 %x) noinline section ".text.first" {
  %place = getelementptr [4 x i32], ptr @table, i64 0, i32 %x
  %value = load i32, ptr %place
  ret i32 %value
}
define internal i32 @second(i32 %x) noinline section ".text.second" {
  %value = call i32 @first(i32 %x)
  %more = mul i32 %value, 1000
  ret i32 %more
}
define i32 @answer(i32 %which, i32 %x) {
  %place = getelementptr [2 x ptr], ptr @pointers, i64 0, i32 %which
  %function = load ptr, ptr %place
  %value = call i32 %function(i32 %x)
  %direct = call i32 @second(i32 1)
  %sum = add i32 %value, %direct
  ret i32 %sum
}
define double @scaled(double %x) {
  %y = fmul double %x, 1.5
  ret double %y
}
"""
"""Code in three sections, a table, a table of pointers to code, and a constant in a pool."""

X86: Final = RECORDS["avx2"]
NEON: Final = RECORDS["neon"]

on_x86 = pytest.mark.skipif(
    platform.machine() not in {"x86_64", "AMD64"}, reason="the code is for x86-64"
)


@pytest.fixture(scope="module")
def code() -> bytes:
    return compile_object(TEXT, X86)


@on_x86
def test_loaded_code_calls_across_sections_and_reads_its_constants(code: bytes) -> None:
    with load(code) as image:
        answer = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int)(image.address("answer"))
        scaled = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(image.address("scaled"))
        assert [answer(which, x) for which in (0, 1) for x in range(4)] == [
            5003, 5005, 5007, 5011, 8000, 10000, 12000, 16000,
        ]  # fmt: skip
        assert scaled(3.0) == 4.5
        assert {"answer", "scaled"} <= image.functions.keys()


def protections() -> dict[tuple[int, int], str]:
    """The protection of every range of this process's memory."""
    found = {}
    for line in Path("/proc/self/maps").read_text("ascii").splitlines():
        span, mode, *_ = line.split()
        low, high = (int(n, 16) for n in span.split("-"))
        found[low, high] = mode
    return found


@on_x86
@pytest.mark.skipif(platform.system() != "Linux", reason="/proc/self/maps is Linux's")
def test_code_is_never_writable_and_is_unmapped_once(code: bytes) -> None:
    image = load(code)
    first = image.address("answer")
    assert [m for (low, high), m in protections().items() if low <= first < high] == ["r-xp"]
    image.close()
    image.close()
    assert not [m for (low, high), m in protections().items() if low <= first < high and "x" in m]
    with pytest.raises(ClosedError, match="unloaded"):
        image.address("answer")


@on_x86
@pytest.mark.skipif(platform.system() != "Linux", reason="/proc/self/maps is Linux's")
def test_a_thousand_images_leave_no_mapping(code: bytes) -> None:
    before = len(protections())
    for _ in range(1000):
        load(code).close()
    assert len(protections()) < before + 10


@on_x86
def test_unknown_function_is_refused_by_name(code: bytes) -> None:
    with load(code) as image, pytest.raises(GeneralFailure, match="no function 'other'"):
        image.address("other")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("declare void @exit(i32)\ndefine void @f() {\n call void @exit(i32 1)\n ret void\n}",
         "it needs 'exit'"),
        ("@v = global i32 3\ndefine i32 @f() {\n %r = load i32, ptr @v\n ret i32 %r\n}",
         "is writable"),
        ("@v = global i32 0\ndefine i32 @f() {\n %r = load i32, ptr @v\n ret i32 %r\n}",
         "is writable"),
        ("@v = thread_local global i32 3\ndefine ptr @f() {\n ret ptr @v\n}", "writable"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("isa", [X86, NEON], ids=lambda isa: isa.name)
def test_code_that_needs_what_it_has_not_is_refused(text: str, said: str, isa: Isa) -> None:
    with pytest.raises(GeneralFailure, match=said):
        parse(compile_object(text, isa))


@on_x86
def test_code_for_another_architecture_is_refused() -> None:
    with pytest.raises(GeneralFailure, match="it is for aarch64"):
        load(compile_object(TEXT, NEON))


@pytest.mark.parametrize(
    "content", [b"", b"\x7fELF", bytes(64), b"\x7fELF\x02\x01\x01" + bytes(57)]
)
def test_bytes_that_are_no_object_are_refused(content: bytes) -> None:
    with pytest.raises(GeneralFailure, match="cannot be loaded"):
        load(content)


def trial(content: bytes) -> bool:
    """Whether *content* is taken. Anything but a refusal is an error of the parser."""
    try:
        relocated(place(parse(content)), 0x10000)
    except GeneralFailure:
        return False
    return True


@pytest.mark.parametrize("isa", [X86, NEON], ids=lambda isa: isa.name)
def test_damaged_objects_are_refused_or_loaded(isa: Isa) -> None:
    whole, rng, taken = compile_object(TEXT, isa), np.random.default_rng(3), 0
    for _ in range(600):
        damaged = bytearray(whole)
        for _ in range(int(rng.integers(1, 4))):
            place_ = int(rng.integers(len(damaged)))
            size = int(rng.choice([1, 2, 4, 8]))
            value = int(rng.choice([0, 1, 0x7F, 0xFF, int(rng.integers(256))]))
            damaged[place_ : place_ + size] = bytes([value]) * len(damaged[place_ : place_ + size])
        with does_not_raise():
            taken += trial(bytes(damaged))
    assert 0 < taken < 600


@pytest.mark.parametrize("isa", [X86, NEON], ids=lambda isa: isa.name)
def test_objects_whose_headers_lost_a_bit_are_refused_or_loaded(isa: Isa) -> None:
    whole, rng = compile_object(TEXT, isa), np.random.default_rng(4)
    start = struct.unpack_from("<Q", whole, 40)[0]
    places = [*range(64), *range(start, len(whole))]
    for at in rng.choice(places, 600):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(8))
        with does_not_raise():
            trial(bytes(damaged))


@pytest.mark.parametrize("isa", [X86, NEON], ids=lambda isa: isa.name)
def test_shortened_objects_are_refused(isa: Isa) -> None:
    whole = compile_object(TEXT, isa)
    assert trial(whole)
    for length in range(0, len(whole), 7):
        assert not trial(whole[:length])


@pytest.mark.parametrize(
    ("architecture", "type_", "far"),
    [("x86_64", 2, 1 << 32), ("x86_64", 4, -(1 << 32)), ("aarch64", 275, 1 << 33),
     ("aarch64", 283, 1 << 28), ("aarch64", 282, 2), ("aarch64", 299, 8),
     ("aarch64", 261, 1 << 31)],
)  # fmt: skip
def test_target_out_of_reach_is_refused(architecture: str, type_: int, far: int) -> None:
    kind = RELOCATIONS[architecture][type_]
    image = np.zeros(64, np.uint8)
    with pytest.raises(GeneralFailure, match=f"{kind.name} is out of reach"):
        kind.write(image, np.array([16]), np.array([0x4000_0000 + 16 + far]), 0x4000_0000)


def test_aarch64_code_calls_across_sections_and_reads_its_constants(tmp_path: Path) -> None:
    skip_without_qemu()
    entry = """
define i32 @run(ptr %frame) {
  %a = call i32 @answer(i32 0, i32 2)
  %b = call i32 @answer(i32 1, i32 3)
  %place = load ptr, ptr %frame
  store i32 %a, ptr %place
  %next = getelementptr i32, ptr %place, i64 1
  store i32 %b, ptr %next
  ret i32 0
}
"""
    written = run_code(TEXT + entry, NEON, 8, tmp_path)
    assert struct.unpack("<2i", written) == (5007, 16000)
