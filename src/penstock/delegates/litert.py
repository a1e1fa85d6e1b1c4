"""LiteRT, as far as native delegates need it: its interpreter, which they were compiled for.
Imported when one is loaded.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

from penstock.distribution import install_command
from penstock.errors import GeneralFailure
from penstock.ir import NDArray

PACKAGE: Final = "ai_edge_litert"
MODULE: Final = f"{PACKAGE}.interpreter"
INSTALL: Final = install_command("xnnpack")
OWN_NAME: Final = "penstock_litert_interpreter"
"""What LiteRT's module is called where its own name is answered by
`penstock.tflite.install_aliases`.
"""


def find_litert() -> ModuleType | None:
    """LiteRT's module `interpreter`, or None where LiteRT is not installed. Raises what importing
    it does.
    """
    found = PathFinder.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        return None
    module = importlib.import_module(MODULE)
    if hasattr(module, "_interpreter_wrapper"):
        return module
    return _by_place(Path(next(iter(found.submodule_search_locations))) / "interpreter.py")


def _by_place(file: Path) -> ModuleType:
    """The module in *file*, under a name of its own."""
    if (known := sys.modules.get(OWN_NAME)) is not None:
        return known
    spec = importlib.util.spec_from_file_location(OWN_NAME, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[OWN_NAME] = module
    return module


class Runner:
    """A LiteRT interpreter of the file *content* with the one native delegate *native*, ready to
    run; LiteRT's own kernels compute what the delegate does not take. `GeneralFailure` with
    LiteRT's words.
    """

    def __init__(self, litert: Any, content: bytes, native: Any, num_threads: int | None) -> None:
        self.content, self.native = content, native
        try:
            self._interpreter = litert.Interpreter(
                model_content=content,
                experimental_delegates=[native],
                num_threads=num_threads,
                experimental_op_resolver_type=litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
            )
            self._interpreter.allocate_tensors()
            self.taken, self.count = _taken(self._interpreter._get_ops_details())  # noqa: SLF001  # the only way to see nodes
        except (RuntimeError, ValueError) as error:
            raise GeneralFailure(f"LiteRT: {error}") from error
        self._inputs = [d["index"] for d in self._interpreter.get_input_details()]
        self._outputs = [d["index"] for d in self._interpreter.get_output_details()]

    def run(self, values: Sequence[NDArray]) -> list[NDArray]:
        """The outputs, in order."""
        try:
            for index, value in zip(self._inputs, values, strict=True):
                self._interpreter.set_tensor(index, value)
            self._interpreter.invoke()
            return [np.asarray(self._interpreter.get_tensor(i)) for i in self._outputs]
        except (RuntimeError, ValueError) as error:
            raise GeneralFailure(f"LiteRT: {error}") from error

    def close(self) -> None:
        """Lets go of the interpreter, which frees the delegate's kernels."""
        del self._interpreter


def _taken(nodes: Sequence[Mapping[str, Any]]) -> tuple[list[int], int]:
    """Which of the file's operators the delegate has, by index, and how many operators there are.

    A delegate's node stands for whatever leads from its inputs to its outputs.
    """
    own = [n for n in nodes if n["op_name"] != "DELEGATE"]
    maker = {int(t): n for n in own for t in n["outputs"]}
    found: set[int] = set()
    for node in nodes:
        if node["op_name"] != "DELEGATE":
            continue
        given = {int(t) for t in node["inputs"]}
        waiting = [int(t) for t in node["outputs"]]
        while waiting:
            tensor = waiting.pop()
            one = maker.get(tensor)
            if tensor in given or one is None or one["index"] in found:
                continue
            found.add(one["index"])
            waiting += [int(t) for t in one["inputs"]]
    return sorted(found), len(own)
