"""wgpu's C declarations are parsed once and for all, not in each process."""

from __future__ import annotations

from pathlib import Path

import cffi
import pytest

from benchmarks.cache import small
from benchmarks.starts import Start
from penstock.drivers.webgpu.declarations import parsed, parsed_declarations
from penstock.drivers.webgpu.installation import engine_version
from tests.support_webgpu import needs_webgpu
from tools.generate_webgpu_declarations import TARGET, content


@pytest.mark.skipif(not engine_version(), reason="wgpu is not installed")
def test_declarations_are_those_of_the_installed_wgpu() -> None:
    assert TARGET.read_bytes() == content(), "run tools/generate_webgpu_declarations.py"


def test_parsed_declarations_have_their_types_and_constants() -> None:
    ffi = parsed().made()
    assert ffi.sizeof("WGPULimits") > 100
    assert ffi.new("WGPUBindGroupEntry *", {"binding": 3}).binding == 3
    assert ffi.typeof("WGPUBuffer").kind == "pointer"


def test_cffi_parses_declarations_of_other_users() -> None:
    own = cffi.FFI
    with parsed_declarations():
        ffi = cffi.FFI()
        assert isinstance(ffi, own)
        ffi.cdef("struct two { char a; int b; };")
        with pytest.raises(AttributeError, match="nothing"):
            _ = ffi.nothing
    assert cffi.FFI is own
    assert ffi.sizeof("struct two") == 8


@needs_webgpu
def test_a_hit_imports_neither_a_parser_nor_what_prints_shaders(tmp_path: Path) -> None:
    model = tmp_path / "small.tflite"
    model.write_bytes(small())
    environment = {
        "PENSTOCK_STATE_DIR": str(tmp_path / "s"),
        "PENSTOCK_KEY_STORE": "file",
        "PENSTOCK_ISOLATE": "webgpu=no",
    }
    arguments = str(model), "webgpu-software", str(tmp_path / "c")
    start = Start("penstock_modules", arguments, environment)
    assert start.run()["compiles"] == 1
    warm = start.run()
    assert warm["compiles"] == 0
    assert "wgpu" in warm["modules"]
    unwanted = ("pycparser", "penstock.drivers.webgpu.emit", "penstock.compiler")
    assert [m for m in warm["modules"] for n in unwanted if f"{m}.".startswith(f"{n}.")] == []
