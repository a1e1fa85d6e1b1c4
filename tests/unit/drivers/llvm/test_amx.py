"""Products by tiles of AMX: assembled here, and run where the processor has it."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

from penstock.compiler import interpreter
from penstock.compiler.memory import plan
from penstock.drivers.llvm import processor
from penstock.drivers.llvm.backend import assembly, compile_object
from penstock.drivers.llvm.emit.module import generate
from penstock.drivers.llvm.isa import RECORDS
from penstock.drivers.llvm.load.elf import parse
from penstock.ir import DType, NDArray
from tests.support_compiler import differences
from tests.support_generated import Runner, compiled
from tests.support_guard import run_guarded
from tests.support_layers import supported_layers

AMX: Final = RECORDS["avx512-amx"]
VNNI: Final = RECORDS["avx512-vnni"]


def programs(family: str, count: int = 30) -> list[str]:
    """The assembly of the layers of *family* of which some product is taken by tiles."""
    found = []
    for _, model, _ in supported_layers(family, range(count), DType.INT8):
        text = generate(plan(compiled(model, AMX)), AMX).text
        if "tdpbusd" in text:
            found.append(assembly(text, AMX))
    return found


@pytest.mark.parametrize("family", ["convolution", "dense"])
def test_tiles_are_multiplied_and_no_tile_is_spilled(family: str) -> None:
    found = programs(family)
    assert found
    for text in found:
        kernel = text[text.index("ldtilecfg") : text.index("tilerelease")]
        products = re.findall(r"tdpbusd\s+%tmm(\d), %tmm4, %tmm(\d)", kernel)
        assert products
        # A spilled tile is stored and loaded once more; each tile of sums is stored once.
        stores = kernel.count("tilestored")
        assert stores == kernel.count("tilezero")
        assert kernel.count("tileloadd") <= len(products) * 2


def test_object_with_tiles_has_no_undefined_symbol() -> None:
    checked = 0
    for _, model, _ in supported_layers("convolution", range(20), DType.INT8):
        text = generate(plan(compiled(model, AMX)), AMX).text
        if "tdpbusd" in text:
            assert "run" in parse(compile_object(text, AMX)).symbols
            checked += 1
    assert checked


def test_tiles_are_chosen_only_with_the_feature_and_the_permission(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processor, "architecture", lambda: "x86_64")
    monkeypatch.setattr(processor, "_linux_features", lambda: set(AMX.features))
    monkeypatch.setattr(processor, "_numpy_features", lambda: set(AMX.features))
    try:
        for permitted, name in ((True, "avx512-amx"), (False, "avx512-vnni")):
            monkeypatch.setattr(processor, "tiles_permitted", lambda given=permitted: given)
            processor.features.cache_clear()
            best = processor.best()
            assert best is not None
            assert best.name == name
    finally:
        processor.features.cache_clear()


class Played:
    """AMX as functions of Python, which code calls in the place of its instructions."""

    def __init__(self) -> None:
        self.tiles: dict[int, NDArray] = {}
        self.products = 0
        kinds: dict[str, tuple[Callable[..., None], list[Any]]] = {
            "ldtilecfg": (self._configure, [ctypes.c_void_p]),
            "tilerelease": (self.tiles.clear, []),
            "tilezero": (self._zero, [ctypes.c_uint8]),
            "tileloadd64": (self._load, [ctypes.c_uint8, ctypes.c_void_p, ctypes.c_int64]),
            "tilestored64": (self._store, [ctypes.c_uint8, ctypes.c_void_p, ctypes.c_int64]),
            "tdpbusd": (self._multiply, [ctypes.c_uint8] * 3),
        }
        self.functions = {n: ctypes.CFUNCTYPE(None, *given)(f) for n, (f, given) in kinds.items()}

    def changed(self, text: str) -> str:
        """*text* with calls of the functions."""
        for name, function in self.functions.items():
            text = re.sub(rf"declare void @llvm.x86.{name}\(.*\n", "", text)
            address = ctypes.cast(function, ctypes.c_void_p).value
            text = text.replace(f"@llvm.x86.{name}(", f"inttoptr (i64 {address} to ptr)(")
        return text

    def _configure(self, place: int) -> None:
        content = ctypes.string_at(place, 64)
        for number in range(8):
            columns = int.from_bytes(content[16 + 2 * number : 18 + 2 * number], "little")
            self.tiles[number] = np.zeros((content[48 + number], columns), np.uint8)

    def _zero(self, number: int) -> None:
        self.tiles[number][:] = 0

    def _load(self, number: int, place: int, stride: int) -> None:
        for row, line in enumerate(self.tiles[number]):
            line[:] = np.frombuffer(ctypes.string_at(place + row * stride, len(line)), np.uint8)

    def _store(self, number: int, place: int, stride: int) -> None:
        for row, line in enumerate(self.tiles[number]):
            ctypes.memmove(place + row * stride, line.tobytes(), len(line))

    def _multiply(self, sums: int, data: int, weights: int) -> None:
        a = self.tiles[data].astype(np.int64)
        b = self.tiles[weights].view(np.int8).reshape(-1, 16, 4).astype(np.int64)
        made = np.einsum("mkt,knt->mn", a.reshape(len(a), -1, 4), b)
        total = self.tiles[sums].view(np.int32)
        total[:] = (total + made).astype(np.int32)
        self.products += 1


@pytest.mark.skipif(
    bool(processor.missing(VNNI)), reason="the code around the tiles needs AVX-512 with VNNI"
)
@pytest.mark.parametrize("family", ["convolution", "dense", "chain"])
def test_products_by_tiles_are_right_where_the_instructions_are_played(family: str) -> None:
    products = 0
    for seed, model, inputs in supported_layers(family, range(40), DType.INT8):
        program = compiled(model, AMX)
        if "tdpbusd" not in generate(plan(program), AMX).text:
            continue
        played = Played()
        runner = Runner(program, AMX, played.changed)
        wanted = interpreter.run(program, inputs)
        for first in (False, True):
            got = run_guarded(runner, inputs, first=first)
            assert differences(wanted, got) == [], f"seed {seed}"
        runner.close()
        products += played.products
    assert products


@pytest.mark.skipif(bool(processor.missing(AMX)), reason="this processor has no AMX, or forbids it")
@pytest.mark.parametrize("family", ["convolution", "dense", "chain"])
def test_products_by_tiles_are_those_of_the_interpreter(family: str) -> None:
    for seed, model, inputs in supported_layers(family, range(30), DType.INT8):
        program = compiled(model, AMX)
        runner = Runner(program, AMX)
        assert differences(interpreter.run(program, inputs), runner(inputs)) == [], seed
        runner.close()
