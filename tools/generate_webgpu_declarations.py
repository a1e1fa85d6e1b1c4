"""Writes src/penstock/drivers/webgpu/declarations.json from the header of the installed wgpu:

python tools/generate_webgpu_declarations.py
"""

from __future__ import annotations

import ast
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import cffi
import msgspec

from penstock.driverkit.installation import package_folder
from penstock.drivers.webgpu.declarations import PARSED, Parsed

ROOT: Final = Path(__file__).parent.parent
TARGET: Final = ROOT / "src/penstock/drivers/webgpu" / PARSED


def header() -> str:
    """The declarations, as wgpu gives them to cffi."""
    folder = package_folder("wgpu")
    if folder is None:
        raise SystemExit("wgpu is not installed")
    return Path(folder, "resources/combined_header.h").read_text()


def parsed_by_cffi(text: str) -> Parsed:
    """What cffi makes of *text*: the arguments in the module of Python that it writes."""
    ffi = cffi.FFI()
    ffi.cdef(text)
    ffi.set_source("wgpu_native", None)
    with tempfile.TemporaryDirectory() as directory:
        module = Path(directory, "wgpu_native.py")
        ffi.emit_python_code(str(module))
        tree = ast.parse(module.read_text("ascii"))
    call = next(node for node in ast.walk(tree) if isinstance(node, ast.Call))
    found = {str(k.arg).removeprefix("_"): _texts(ast.literal_eval(k.value)) for k in call.keywords}
    return Parsed(text=sha256(text.encode()).hexdigest(), **found)


def _texts(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return tuple(map(_texts, value)) if isinstance(value, tuple) else value


def content() -> bytes:
    """The content of the file for the installed wgpu."""
    return msgspec.json.format(msgspec.json.encode(parsed_by_cffi(header())), indent=1) + b"\n"


if __name__ == "__main__":
    TARGET.write_bytes(content())
