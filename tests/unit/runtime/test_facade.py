from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys

import penstock
from tests.support_programs import run_python

ENGINES = ("openvino", "onnxruntime", "ai_edge_litert", "llvmlite", "wgpu", "typer", "rich", "PIL")


def test_every_public_name_is_what_the_facade_bound() -> None:
    bound = {name: getattr(penstock, name) for name in penstock.__all__}
    for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    assert {name: getattr(penstock, name) for name in penstock.__all__} == bound


def printed_by(code: str) -> str:
    """What a program of its own prints, whose modules are those that *code* loads."""
    done = run_python("-c", code, check=True)
    return done.stdout.strip()


def test_dir_lists_the_public_names_and_the_public_submodules() -> None:
    listed = dir(penstock)
    assert listed == sorted(listed)
    assert set(penstock.__all__) < set(listed)
    for name in set(listed) - set(penstock.__all__):
        assert getattr(penstock, name) is importlib.import_module(f"penstock.{name}")


def test_submodules_load_as_they_are_first_asked_for_and_no_sooner() -> None:
    code = (
        "import sys, penstock;"
        "names = sorted(set(dir(penstock)) - set(penstock.__all__));"
        "early = [n for n in ('cache', 'export', 'runtime', 'testing', 'tflite')"
        " if f'penstock.{n}' in sys.modules];"
        "print(early, penstock.errors.PenstockError is penstock.PenstockError,"
        " [n for n in names if getattr(penstock, n).__name__ != f'penstock.{n}'])"
    )
    assert printed_by(code) == "[] True []"


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(penstock, "compiled")


def test_import_loads_no_engine_and_no_driver() -> None:
    code = (
        "import sys, penstock;"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in "
        f"{ENGINES!r} or m.startswith(('penstock.drivers', 'penstock.cli', 'numpy'))))"
    )
    assert printed_by(code) == "[]"


def test_compiling_loads_neither_the_command_line_nor_pictures() -> None:
    code = (
        "import sys, penstock; penstock.compile, penstock.load, penstock.devices();"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('typer', 'rich', 'PIL')))"
    )
    assert printed_by(code) == "[]"


def test_a_named_device_is_found_without_the_other_drivers_and_what_reads_all_metadata() -> None:
    code = (
        "import sys; from penstock.runtime.discovery import manager; manager.choose(['sample']);"
        "print({m.split('.')[2] for m in sys.modules if m.startswith('penstock.drivers.')},"
        "[m for m in ('importlib.metadata', 'email', 'zipfile', 'tempfile', 'platformdirs')"
        " if m in sys.modules])"
    )
    assert printed_by(code) == "{'sample'} []"


def test_no_public_name_is_a_module_or_hides_one() -> None:
    modules = {m.name for m in pkgutil.walk_packages(penstock.__path__, "penstock.")}
    for module in sorted(modules):
        if not module.endswith("__main__"):
            importlib.import_module(module)
    packages = ["penstock", *sorted(m for m in modules if hasattr(sys.modules.get(m), "__path__"))]
    clashes = {
        f"{package}.{name}"
        for package in packages
        for name in getattr(sys.modules[package], "__all__", ())
        if inspect.ismodule(getattr(sys.modules[package], name)) or f"{package}.{name}" in modules
    }
    assert clashes == set()
    assert len(packages) > 10
