"""`load_delegate`: TFLite delegates in shared libraries, run by LiteRT. Experimental until 1.0."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path, PurePath
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from penstock.delegates import api
from penstock.delegates.api import Delegate, DelegateFlags, DelegateNode
from penstock.delegates.codes import BuiltinOperator
from penstock.delegates.simple import DelegateKernel
from penstock.distribution import install_command
from penstock.errors import GeneralFailure, NotAvailable, NotExportable
from penstock.export.tflite import write
from penstock.ir import NDArray
from penstock.logs import Log

if TYPE_CHECKING:
    from penstock.delegates.context import DelegateContext, DelegateTensor, PartitionModel


PACKAGE: Final = "ai_edge_litert"
MODULE: Final = f"{PACKAGE}.interpreter"
INSTALL: Final = install_command("xnnpack")
OWN_NAME: Final = "penstock_litert_interpreter"
"""LiteRT's module name while `penstock.tflite.install_aliases` occupies its own name."""


def find_litert() -> ModuleType | None:
    """LiteRT's module `interpreter`; None if it is not installed. Raises what its import does."""
    found = PathFinder.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        return None
    module = importlib.import_module(MODULE)
    if hasattr(module, "_interpreter_wrapper"):
        return module
    if (known := sys.modules.get(OWN_NAME)) is not None:
        return known
    file = Path(next(iter(found.submodule_search_locations))) / "interpreter.py"
    spec = importlib.util.spec_from_file_location(OWN_NAME, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[OWN_NAME] = module
    return module


class Runner:
    """A LiteRT interpreter of the file *content* with *native*. Raises `GeneralFailure`."""

    def __init__(self, litert: Any, content: bytes, native: Any, num_threads: int | None) -> None:
        self.content, self.native = content, native
        builtin = litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        try:
            self._interpreter = litert.Interpreter(
                model_content=content,
                experimental_delegates=[native],
                num_threads=num_threads,
                experimental_op_resolver_type=builtin,
            )
            self._interpreter.allocate_tensors()
            details = self._interpreter._get_ops_details()  # noqa: SLF001  # no public way
            self.taken, self.count = _taken(details)
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
        """Drops the interpreter, which frees the delegate's kernels."""
        del self._interpreter


def _taken(nodes: Sequence[Mapping[str, Any]]) -> tuple[list[int], int]:
    """(indexes of the operators that the delegate took, number of the file's operators)."""
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


log = Log(__name__)

PASSED: Final = frozenset(["bool", "complex64", "float16", "float32", "float64"]) | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
"""Element types that LiteRT's Python interpreter accepts and returns unchanged."""


class DelegateNotLoaded(NotAvailable, ValueError, OSError):
    """A delegate's library cannot be loaded: a `ValueError`, as LiteRT documents it, and an
    `OSError`, which LiteRT raises for a missing one. Programs that catch either continue without a
    delegate.
    """


class NativeDelegate(Delegate):
    """A TFLite delegate in the shared library *library*. *options* are passed as text.

    It uses the C interface of external delegates (`tflite_plugin_create_delegate`,
    `tflite_plugin_destroy_delegate`). A native delegate needs a graph of TFLite, so LiteRT must be
    installed (ai-edge-litert, the extra `xnnpack`). The delegate sees the graph in a LiteRT
    interpreter. The nodes that it takes become delegate nodes. A LiteRT interpreter with the
    delegate runs each of them; the runtime runs the rest. As in LiteRT, the library creates one
    delegate for all its interpreters. If one graph needs several LiteRT interpreters, the delegate
    is created again with the same options. Shapes are static, as for most native delegates.

    Raises `DelegateNotLoaded` if the library cannot be loaded or LiteRT is missing;
    `AttributeError` for a library without a delegate; `ValueError` with the library's message if it
    refuses to create one.
    """

    def __init__(self, library: str, options: Mapping[Any, Any] | None = None) -> None:
        super().__init__(DelegateFlags.NONE)
        if not library:
            raise AttributeError(
                "no library is named; a delegate is loaded from a file, given by its path"
            )
        try:
            loaded = ctypes.PyDLL(library)
        except OSError as error:
            raise DelegateNotLoaded(f"{error}\nFailed to load delegate from {library}") from error
        _ = loaded.tflite_plugin_create_delegate
        self.library, self.options = library, dict(options or {})
        self._litert = _litert(library)
        self._natives = [self._litert.Delegate(library, self.options)]
        self._used: list[tuple[Runner, int]] = []
        self._library = self._natives[0]._library  # noqa: SLF001  # LiteRT's name
        self.name = PurePath(library).name
        self.reasons: dict[int, str] = {}
        """Reasons why nodes of the last graph were not taken, by node."""

    def copy_from_buffer_handle(
        self, context: DelegateContext, handle: int, tensor: DelegateTensor
    ) -> None:
        """Raises `GeneralFailure`: only LiteRT sees the delegate's buffers."""
        raise GeneralFailure(f"{self.name} keeps no buffers")

    def prepare(self, context: DelegateContext) -> None:
        """Shows the graph to the delegate, and replaces the nodes that it takes."""
        self.reasons = {}
        nodes = self._offered(context)
        if not nodes:
            return
        try:
            part, content = _written(context, nodes)
        except NotExportable:
            nodes = [n for n in nodes if self._is_exportable(context, n)]
            if not nodes:
                return
            part, content = _written(context, nodes)
        # The first kernel continues to use this interpreter if it runs the same file.
        shown = [self.runner(content, context)]
        try:
            count = len(part.nodes)
            if shown[0].count != count:
                raise GeneralFailure(f"LiteRT does not have the {count} nodes shown to it")
            taken = sorted({part.nodes[i] for i in shown[0].taken})
            for node in nodes:
                if node not in taken:
                    self.reasons[node] = f"{self.name} does not take it"
            if taken:
                registration = api.DelegateRegistration(
                    self.name,
                    BuiltinOperator.DELEGATE,
                    init=lambda context, params: NativeKernel(self, context, params.nodes, shown),
                    invoke=lambda context, node: node.user_data.invoke(context, node),
                    free=lambda _, kernel: kernel.free(),
                )
                context.replace_node_subsets_with_delegate_kernels(registration, taken, self)
        finally:
            for runner in shown:
                self.release(runner)

    def runner(
        self, content: bytes, context: DelegateContext, shown: list[Runner] | None = None
    ) -> Runner:
        """A LiteRT interpreter of *content*: the one in *shown*, if it runs the same file."""
        while shown:
            if (runner := shown.pop()).content == content:
                return runner
            self.release(runner)
        native = self._native(context.graph_id)
        runner = Runner(self._litert, content, native, context.num_threads)
        self._used.append((runner, context.graph_id))
        return runner

    def release(self, runner: Runner) -> None:
        """Closes *runner*; its delegate may serve the next part of its graph."""
        self._used = [(known, graph_id) for known, graph_id in self._used if known is not runner]
        runner.close()

    def _get_native_delegate_pointer(self) -> int:
        """The `TfLiteDelegate *` from LiteRT's delegate. It lives as long as this object."""
        return int(self._natives[0]._get_native_delegate_pointer())  # noqa: SLF001  # LiteRT's name

    def _offered(self, context: DelegateContext) -> list[int]:
        """The nodes that the delegate may see."""
        nodes = []
        for index in context.execution_plan:
            node = context.node_and_registration(index)[0]
            tensors = [context.tensor(t) for t in (*node.inputs, *node.outputs) if t >= 0]
            reasons = (context.reason_kept(index), *map(_not_passed, tensors))
            if reason := next(filter(None, reasons), ""):
                self.reasons[index] = reason
            else:
                nodes.append(index)
        return nodes

    def _is_exportable(self, context: DelegateContext, node: int) -> bool:
        try:
            _written(context, [node])
        except NotExportable as error:
            self.reasons[node] = str(error)
            return False
        return True

    def _native(self, graph_id: int) -> Any:
        """LiteRT's delegate for a further part of a graph: the first that serves no other part."""
        for native in self._natives:
            if not any(r.native is native and other == graph_id for r, other in self._used):
                return native
        self._natives.append(self._litert.Delegate(self.library, self.options))
        return self._natives[-1]


class NativeKernel(DelegateKernel):
    """One subset of *nodes*, in a LiteRT interpreter with the native delegate."""

    def __init__(
        self,
        delegate: NativeDelegate,
        context: DelegateContext,
        nodes: Sequence[int],
        shown: list[Runner],
    ) -> None:
        self._delegate = delegate
        self._part, content = _written(context, nodes)
        self._runner: Runner | None = delegate.runner(content, context, shown)
        if left := self._runner.count - len(self._runner.taken):
            text = (
                "%s takes %d nodes of its subset less than of the whole graph; LiteRT computes them"
            )
            log.warning(text, delegate.name, left)

    def invoke(self, context: DelegateContext, node: DelegateNode) -> None:
        """Copies in, runs, copies out. Raises `GeneralFailure` with LiteRT's message."""
        if self._runner is None:
            raise GeneralFailure("its kernel has been freed")
        results = self._runner.run([context.tensor(i).data for i in self._part.inputs])
        for index, value in zip(self._part.outputs, results, strict=True):
            context.tensor(index).data[...] = value

    def free(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            self._delegate.release(runner)


Made = TypeVar("Made", bound=NativeDelegate)


def load_delegate(library: str, options: Mapping[Any, Any] | None = None) -> NativeDelegate:
    """The delegate in the shared library *library*. Raises what `NativeDelegate` does."""
    return loaded(NativeDelegate, library, options)


def loaded(kind: type[Made], library: str, options: Mapping[Any, Any] | None) -> Made:
    """A delegate of class *kind*. If the library refuses, the error names it, as in LiteRT."""
    try:
        return kind(library, options)
    except DelegateNotLoaded:
        raise
    except ValueError as error:
        raise ValueError(f"Failed to load delegate from {library}\n{error}") from error


def _not_passed(tensor: DelegateTensor) -> str:
    """Why the delegate may not see nodes at *tensor*; "" if it may."""
    if tensor.is_variable:
        return "it reads network state, which native delegates are not given"
    if tensor.dtype.value not in PASSED:
        return f"LiteRT does not take or give {tensor.dtype.value} tensors as they are"
    return ""


def _written(context: DelegateContext, nodes: Sequence[int]) -> tuple[PartitionModel, bytes]:
    """*nodes* as a model and as a TFLite file. Raises `NotExportable`."""
    part = context.partition_model(nodes)
    return part, write(part.model)


def _litert(library: str) -> Any:
    failure, why = None, f"is not installed: {INSTALL}"
    try:
        if (found := find_litert()) is not None:
            return found
    except ImportError as error:
        failure, why = error, f"cannot be imported: {error}"
    reason = f"LiteRT, which runs native delegates, {why}"
    raise DelegateNotLoaded(f"Failed to load delegate from {library}\n{reason}") from failure
