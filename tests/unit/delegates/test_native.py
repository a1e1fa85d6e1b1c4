"""Native delegates: a small one, built here from C where there is a compiler, in LiteRT."""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import delegates, tflite
from penstock.delegates import DelegateNotLoaded, NativeDelegate
from penstock.errors import DelegateError, NotAvailable
from penstock.testing.contract.delegates import Subject, run_delegate_contract
from tests.support_forks import in_child
from tests.support_programs import run_python
from tests.unit.delegates import graphs
from tests.unit.loaders.files import FileBuilder, accumulator, svdf

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
SOURCE = Path(__file__).with_name("negation.c")
X = np.array([1, -2], np.float32)
MIXED = graphs.chain("NEG", "ABS", "NEG", "NEG")

if importlib.util.find_spec("ai_edge_litert") is None:
    pytest.skip("ai-edge-litert is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The delegate's shared library."""
    if COMPILER is None:
        pytest.skip("there is no C compiler (cc, gcc or clang) to build a delegate with")
    built = tmp_path_factory.mktemp("native") / "libnegation.so"
    command = [COMPILER, "-shared", "-fPIC", "-o", str(built), str(SOURCE)]
    subprocess.run(command, check=True, capture_output=True)
    return str(built)


class Counts:
    """What the library has counted since."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        # What other tests left would go in the middle.
        gc.collect()
        self._before = self._now()

    def _now(self) -> list[int]:
        names = ("alive", "kernels", "invokes")
        return [ctypes.c_int.in_dll(self._library, n).value for n in names]

    def __call__(self) -> tuple[int, ...]:
        """Delegates and kernels alive, and invocations."""
        return tuple(a - b for a, b in zip(self._now(), self._before, strict=True))


def opened(content: bytes, *added: Any) -> tflite.Interpreter:
    made = tflite.Interpreter(
        model_content=content,
        experimental_delegates=list(added),
        devices=["reference"],
        cache=False,
    )
    made.allocate_tensors()
    return made


def run(interpreter: tflite.Interpreter, value: Any) -> Any:
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], value)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def kinds(interpreter: tflite.Interpreter) -> list[str]:
    return [o["op_name"] for o in interpreter._get_ops_details()]


def test_native_delegate_computes_the_nodes_that_it_takes(library: str) -> None:
    counts = Counts(library)
    delegate = tflite.load_delegate(library, {"bias": 0.5})
    interpreter = opened(MIXED, delegate)
    assert kinds(interpreter) == ["NEG", "ABS", "NEG", "NEG", "DELEGATE", "DELEGATE"]
    assert delegate.reasons == {1: "libnegation.so does not take it"}
    assert counts() == (2, 2, 0)
    np.testing.assert_array_equal(run(interpreter, X), np.abs(-X + 0.5) + 0.5)
    assert counts() == (2, 2, 2)
    interpreter.close()
    assert counts() == (2, 0, 2)
    del interpreter, delegate
    assert counts() == (0, 0, 2)


def test_a_graph_that_it_takes_whole_is_opened_once(library: str) -> None:
    counts = Counts(library)
    interpreter = opened(graphs.chain("NEG"), delegates.load_delegate(library, {"bias": 3}))
    assert counts() == (1, 1, 0)
    np.testing.assert_array_equal(run(interpreter, X), -X + 3)


@pytest.mark.parametrize("module", ["ai_edge_litert.interpreter", "penstock.tflite"])
class TestAsProgramsOfLitertUseIt:
    """What programs do with the library of a delegate, in LiteRT and here."""

    def test_the_functions_of_its_library_can_be_called(self, library: str, module: str) -> None:
        tflite = importlib.import_module(module)
        gc.collect()
        delegate = tflite.load_delegate(library, {"bias": 1})
        lib = delegate._library
        lib.forget_counts()
        assert isinstance(lib, ctypes.PyDLL)
        interpreter = tflite.Interpreter(
            model_content=graphs.chain("NEG"), experimental_delegates=[delegate]
        )
        assert interpreter._delegates[0]._library is lib
        assert (lib.count_created(), lib.count_destroyed(), lib.count_prepared()) == (0, 0, 1)
        other = tflite.Interpreter(
            model_content=graphs.chain("NEG"), experimental_delegates=[delegate]
        )
        assert (lib.count_created(), lib.count_destroyed(), lib.count_prepared()) == (0, 0, 2)
        for one in (interpreter, other):
            one.allocate_tensors()
            np.testing.assert_array_equal(run(one, X), -X + 1)
        del delegate, interpreter, other, one
        assert (lib.count_created(), lib.count_destroyed()) == (0, 1)

    def test_native_delegate_is_destroyed_after_its_kernels(
        self, library: str, module: str
    ) -> None:
        tflite = importlib.import_module(module)
        gc.collect()
        delegate = tflite.load_delegate(library)
        lib, left = delegate._library, list[int]()
        kernels = ctypes.c_int.in_dll(lib, "kernels")
        before = kernels.value
        notify = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(lambda _: left.append(kernels.value))
        lib.set_on_destroy(notify)
        interpreter = tflite.Interpreter(
            model_content=graphs.chain("NEG"), experimental_delegates=[delegate]
        )
        del delegate
        assert (left, kernels.value) == ([], before + 1)
        del interpreter
        lib.set_on_destroy(None)
        assert left == [before]

    def test_native_delegate_has_the_pointer_of_the_library(
        self, library: str, module: str
    ) -> None:
        delegate = importlib.import_module(module).load_delegate(library)
        assert delegate._get_native_delegate_pointer() > 0


def test_native_delegate_passes_the_contract_suite(library: str) -> None:
    subject = Subject(lambda: delegates.load_delegate(library), MIXED, rtol=0, atol=0)
    found = run_delegate_contract(subject)
    assert [(r.check, r.message) for r in found if r.outcome == "failed"] == []
    assert sum(r.outcome == "passed" for r in found) >= 9


def test_native_delegate_works_beside_another_delegate(library: str) -> None:
    first = delegates.load_delegate(library, {"bias": 1})
    second = delegates.DriverDelegate("reference", cache=False)
    interpreter = opened(MIXED, first, second)
    assert kinds(interpreter)[4:] == ["DELEGATE"] * 3
    np.testing.assert_array_equal(run(interpreter, X), np.abs(-X + 1) + 1)


def test_native_delegate_sees_the_graph_again_after_a_resize(library: str) -> None:
    counts = Counts(library)
    interpreter = opened(MIXED, tflite.load_delegate(library, {"bias": 1}))
    interpreter.resize_tensor_input(0, [5])
    interpreter.allocate_tensors()
    value = np.arange(5, dtype=np.float32)
    np.testing.assert_array_equal(run(interpreter, value), np.abs(-value + 1) + 1)
    assert counts() == (2, 2, 2)


def test_an_operator_that_only_it_knows(library: str) -> None:
    file = FileBuilder()
    x, y, z = (file.tensor(n, [2]) for n in "xyz")
    file.operator("CUSTOM:negate", [x], [y])
    file.operator("ABS", [y], [z], {})
    dynamic = tflite.load_delegate(library, {"bias": 4, "flags": 1})
    interpreter = opened(file.finish([x], [z]), dynamic)
    np.testing.assert_array_equal(run(interpreter, X), np.abs(-X + 4))


@pytest.mark.parametrize("stage", ["prepare", "kernel"])
def test_native_delegate_that_cannot_be_added_leaves_the_graph_unchanged(
    library: str, stage: str
) -> None:
    counts = Counts(library)
    interpreter = opened(MIXED)
    failing = tflite.load_delegate(library, {"fail": stage})
    with pytest.raises(
        DelegateError, match=r"'libnegation.so' failed in prepare: .*LiteRT: "
    ) as caught:
        interpreter.modify_graph_with_delegate(failing)
    assert caught.value.delegate == "libnegation.so"
    assert kinds(interpreter) == ["NEG", "ABS", "NEG", "NEG"]
    interpreter.allocate_tensors()
    np.testing.assert_array_equal(run(interpreter, X), np.abs(X))
    del failing, caught
    assert counts()[1] == 0


def test_native_delegate_that_fails_in_a_run_is_named(library: str) -> None:
    interpreter = opened(MIXED, tflite.load_delegate(library, {"fail": "invoke"}))
    with pytest.raises(
        RuntimeError, match=r"'libnegation.so' failed in invoke: .*the bus is on fire"
    ):
        run(interpreter, X)


def test_options_that_the_library_refuses(library: str) -> None:
    for load, words in (
        (tflite.load_delegate, f"Failed to load delegate from {library}\nthere is no option usb"),
        (
            delegates.load_delegate,
            f"Failed to load delegate from {library}\nthere is no option usb",
        ),
        (tflite.Delegate, "there is no option usb"),
        (NativeDelegate, "there is no option usb"),
    ):
        with pytest.raises(ValueError, match="there is no option usb") as caught:
            load(library, {"bias": 1, "usb": 0})
        assert str(caught.value) == words


def test_state_stays_with_the_runtime(library: str) -> None:
    for content in (svdf().encode(), accumulator().encode()):
        delegate = tflite.load_delegate(library)
        with_it, without = opened(content, delegate), opened(content)
        value = np.ones(with_it.get_input_details()[0]["shape"], np.float32)
        for _ in range(3):
            np.testing.assert_array_equal(run(with_it, value), run(without, value))
        assert all(delegate.reasons.values())


def test_native_delegate_is_not_shown_inexpressible_nodes(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.delegates import native
    from penstock.errors import NotExportable
    from penstock.export.tflite import write

    def refusing(model: Any) -> bytes:
        if any(o.type == "ABS" for o in model.operations):
            raise NotExportable("ABS has no form here")
        return write(model)

    monkeypatch.setattr(native, "write", refusing)
    delegate = tflite.load_delegate(library, {"bias": 1})
    interpreter = opened(MIXED, delegate)
    assert delegate.reasons == {1: "ABS has no form here"}
    np.testing.assert_array_equal(run(interpreter, X), np.abs(-X + 1) + 1)


def test_without_litert_the_extra_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.delegates.native.find_litert", lambda: None)
    with pytest.raises(
        DelegateNotLoaded, match=r"not installed: pip install 'penstock-nn\[xnnpack\]'"
    ):
        tflite.load_delegate(library)

    def broken() -> None:
        raise ImportError("no such symbol")

    monkeypatch.setattr("penstock.delegates.native.find_litert", broken)
    for kind in (ValueError, OSError, NotAvailable):
        with pytest.raises(kind, match="cannot be imported: no such symbol"):
            delegates.load_delegate(library)


def test_native_delegate_works_with_aliases_installed(library: str) -> None:
    code = f"""
import sys
import numpy as np
from penstock.tflite import install_aliases
install_aliases()
from ai_edge_litert.interpreter import Interpreter, load_delegate
import penstock.tflite
assert Interpreter is penstock.tflite.Interpreter
delegate = load_delegate({library!r}, {{"bias": 2}})
content = bytes.fromhex({graphs.chain("NEG").hex()!r})
made = Interpreter(model_content=content, experimental_delegates=[delegate])
made.allocate_tensors()
made.set_tensor(0, np.array([1, -2], np.float32))
made.invoke()
assert made.get_tensor(1).tolist() == [1.0, 4.0], made.get_tensor(1)
again = load_delegate({library!r})
"""
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr


def test_an_object_of_litert_is_sent_to_load_delegate(library: str) -> None:
    import ai_edge_litert.interpreter as litert

    foreign = litert.load_delegate(library)
    with pytest.raises(NotAvailable, match=r"penstock.tflite.load_delegate loads the same library"):
        opened(MIXED, foreign)


def test_tensors_that_litert_does_not_pass_stay(library: str) -> None:
    file = FileBuilder()
    x, y, z = file.tensor("x", [2]), file.tensor("y", [2], "BFLOAT16"), file.tensor("z", [2])
    file.operator("CAST", [x], [y], {})
    file.operator("CAST", [y], [z], {})
    delegate = tflite.load_delegate(library)
    interpreter = opened(file.finish([x], [z]), delegate)
    assert set(delegate.reasons.values()) == {
        "LiteRT does not take or give bfloat16 tensors as they are"
    }
    np.testing.assert_array_equal(run(interpreter, X), X)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_native_delegate_works_in_a_forked_child(library: str) -> None:
    interpreter = opened(MIXED, tflite.load_delegate(library, {"bias": 1}))
    wanted = np.abs(-X + 1) + 1
    np.testing.assert_array_equal(run(interpreter, X), wanted)
    np.testing.assert_array_equal(in_child(lambda: run(interpreter, X)), wanted)
    np.testing.assert_array_equal(run(interpreter, X), wanted)
