"""Every Python block of every page runs as it stands, in order, and prints what the page shows.

A page is run in one namespace, as a reader who pastes block after block. `GIVEN` has the objects
that a page takes for granted as the reader's own; `ELSEWHERE` names the test of a page that is more
than blocks of Python.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import numpy as np
import pytest

import penstock
from penstock import delegates
from penstock.cache import Cache
from penstock.drivers.reference import create as reference
from penstock.drivers.webgpu import installation
from penstock.export import tflite
from penstock.ir import DType, Model, ModelBuilder, Quantization
from penstock.runtime import isolation
from penstock.runtime.discovery import Manager
from penstock.testing.resources import Resources
from tests.conftest import ROOT
from tests.e2e.test_writing_a_driver import difference
from tests.support_webgpu import REASON
from tests.unit.delegates import graphs
from tests.unit.delegates.test_documents import doubles
from tests.unit.delegates.test_kinds import MODULES_WITH_A_MANAGER, only, quantised

__all__ = ["only"]

PAGES: Final = {
    str(path.relative_to(ROOT)): text
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("[a-z]*/**/*.md")])
    if path.relative_to(ROOT).parts[0] != "build"
    if "```python" in (text := path.read_text("utf-8"))
}

ELSEWHERE: Final = {
    "docs/writing-a-driver.md": "tests/e2e/test_writing_a_driver.py runs its files and commands, "
    "too",
    "docs/tutorial.md": "tests/e2e/test_readme.py runs it, and looks into its plan and receipt",
    "docs/ray.md": "tests/unit/fleet/test_cluster.py starts the cluster that it needs",
    "docs/llvm.md": "tests/unit/compiler/test_document.py runs it, and prints its stages",
}
"""Pages that this file leaves out, with the reason."""

IN_CHECKOUT: Final = ("README.md",)
"""Pages whose examples open files of the repository; the others run in an empty directory."""

LEAVES_NOTHING: Final = ("docs/memory.md",)
"""Pages after which nothing may stay open: pools, mappings, descriptors, threads."""

UNSHOWN: Final = {
    "docs/nnapi.md": "a receipt with times, and the state of a cache",
    "docs/receipts.md": "two receipts, which the page shows above",
    "docs/partitioning.md": "a plan of the reader's own model",
}
"""Pages that print what they do not show, and what that is."""


def relu(dtype: DType = DType.FLOAT32, quantization: Quantization | None = None) -> Model:
    b = ModelBuilder()
    x = b.input(dtype, (2, 3), "input", quantization)
    return b.build(b.operation("RELU", [x], [(dtype, (2, 3), quantization)]))


def nothing() -> Mapping[str, Any]:
    return {}


def quantised_file(name: str, dtype: DType) -> Callable[[], Mapping[str, Any]]:
    def given() -> Mapping[str, Any]:
        Path(name).write_bytes(tflite.write(relu(dtype, Quantization((0.5,), (0,)))))
        return {"penstock": penstock}

    return given


def serving_client() -> Mapping[str, Any]:
    return {"client": Mock(), "size": 64}


def onnx_file() -> Mapping[str, Any]:
    pytest.importorskip("onnx", reason="the extra onnx is not installed")
    from tests.support_onnx import helper, model_of

    picture = np.ones((2, 3), np.float32)
    node = helper.make_node("Relu", ["input"], ["output"])
    content = model_of([node], {"input": picture}, ["output"]).SerializeToString()
    Path("net.onnx").write_bytes(content)
    return {"picture": picture}


def own_delegate() -> Mapping[str, Any]:
    Path("net.tflite").write_bytes(tflite.write(relu()))

    class MyDelegate(delegates.SimpleDelegate):
        def is_node_supported(self, *_: object) -> bool:
            return False

    return {"penstock": penstock, "MyDelegate": MyDelegate}


def delegate_files() -> Mapping[str, Any]:
    Path("net.tflite").write_bytes(graphs.convolved("ABS"))
    Path("net_int8.tflite").write_bytes(quantised())
    return {}


def a_run() -> Mapping[str, Any]:
    compiled = penstock.compile(relu(), devices=["reference"], cache=False)
    return {"compiled": compiled, "image": np.ones((2, 3), np.float32)}


ON_A_DEVICE: Final = "docs/delegates/gpu.md"
"""The page of a delegate that runs on a device of its own driver, in a process of its own."""

GIVEN: Final[Mapping[str, Callable[[], Mapping[str, Any]]]] = {
    "docs/serving.md": serving_client,
    "docs/onnx.md": onnx_file,
    "docs/onnxruntime.md": quantised_file("net_int8.tflite", DType.INT8),
    "docs/openvino.md": quantised_file("net_uint8.tflite", DType.UINT8),
    "docs/partitioning.md": lambda: {"model": relu(), "devices": [reference()]},
    "docs/receipts.md": a_run,
    "docs/tflite-interpreter.md": own_delegate,
    **{page: delegate_files for page in PAGES if page.startswith("docs/delegates/")},
}
"""The files and names that a page takes for granted."""


def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this a machine without graphics processors, whose drivers' processes are its own."""
    monkeypatch.setattr(installation, "nodes", list)
    monkeypatch.setattr(isolation, "_supervisors", {})
    found = Manager()
    for module in MODULES_WITH_A_MANAGER:
        monkeypatch.setattr(f"penstock.{module}.manager", found)


def without_digests(text: str) -> str:
    return re.sub(r"[0-9a-f]{8}\.\.\.", "#", text)


def same(printed: str, shown: str) -> bool:
    """Whether *printed* is *shown*; there `...` stands for any text, and times for any times."""
    printed, shown = without_digests(printed), without_digests(shown)
    if "..." in shown or " ms" in shown:
        return not difference(f"{printed.rstrip()}\n", shown)
    return [line.rstrip() for line in printed.splitlines()] == shown.splitlines()


@contextmanager
def closed_at_the_end(names: dict[str, Any]) -> Iterator[None]:
    try:
        yield
    finally:
        for value in names.values():
            if isinstance(value, penstock.CompiledModel | penstock.nnapi.Compilation):
                value.close()
        names.clear()


@pytest.mark.parametrize("page", sorted(PAGES.keys() - ELSEWHERE.keys()))
def test_page_prints_what_it_shows(
    page: str,
    only: Callable[..., None],  # the fixture of that name
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(ROOT if page in IN_CHECKOUT else tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
    if page in GIVEN or page in IN_CHECKOUT:
        monkeypatch.setenv("PENSTOCK_DEVICES", "reference")
    if page == ON_A_DEVICE:
        if REASON is not None:
            pytest.skip(REASON)
        without_gpu(monkeypatch)
    elif page.startswith("docs/delegates/"):
        only(*doubles())
    names: dict[str, Any] = {"__name__": "example", **GIVEN.get(page, nothing)()}
    blocks = re.findall(r"```(\w+)\n(.*?)```", PAGES[page], re.DOTALL)
    watched = Resources.unchanged(page) if page in LEAVES_NOTHING else nullcontext()
    with watched, closed_at_the_end(names):
        for place, (language, code) in enumerate(blocks):
            if language != "python":
                continue
            if page == "docs/isolation.md":
                monkeypatch.setattr(isolation, "_supervisors", {})
                monkeypatch.setattr("penstock.runtime.session.manager", Manager())
            exec(compile(code, page, "exec"), names)  # our own page
            if page == "docs/isolation.md":
                isolation.close_hosts()
            printed = capsys.readouterr().out
            following = blocks[place + 1 : place + 2]
            if following and following[0][0] == "text":
                assert same(printed, following[0][1]), printed
            else:
                assert not printed or page in UNSHOWN, printed
        assert all(defect is None for _, defect in Cache().verify())
        if page == ON_A_DEVICE:
            isolation.close_hosts()
        if page == "docs/blobcache.md":
            assert Path("words.cache").read_bytes().startswith(b"nn$$")


@pytest.mark.parametrize("page", ELSEWHERE)
def test_other_pages_are_run_by_the_test_that_is_named(page: str) -> None:
    test = ROOT / ELSEWHERE[page].split()[0]
    assert Path(page).name in test.read_text("utf-8")
    pytest.skip(f"{page}: {ELSEWHERE[page]}")


def test_every_exception_is_a_page_with_python() -> None:
    assert {*ELSEWHERE, *UNSHOWN, *GIVEN, *IN_CHECKOUT, *LEAVES_NOTHING} <= PAGES.keys()
