"""`Interpreter` and `SignatureRunner`: LiteRT's Python interpreter, call for call."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from penstock.arguments import check_kind
from penstock.closing import Closing
from penstock.errors import InputError, NotAvailable, PlacementError
from penstock.hal import Device
from penstock.loaders.tflite.catalog import SubgraphEntry
from penstock.partitioning.policy import Policy
from penstock.runtime.discovery import DeviceInfo, manager
from penstock.runtime.planning import check_rules
from penstock.tflite import texts
from penstock.tflite.core import Core
from penstock.tflite.loading import open_content, open_path
from penstock.tflite.resolver import OpResolverType, placed_by
from penstock.tflite.session import Session
from penstock.tflite.values import as_index

if TYPE_CHECKING:
    from penstock.delegates import Delegate


class SignatureRunner:
    """Runs one signature by its own names; made by `Interpreter.get_signature_runner`.

    While a runner lives, `invoke`, `allocate_tensors` and `resize_tensor_input` of its interpreter
    raise RuntimeError, as in LiteRT: both would use the same memory. Raises `ValueError` without an
    interpreter or a key, and for an unknown key.
    """

    def __init__(
        self, interpreter: Interpreter | None = None, signature_key: str | None = None
    ) -> None:
        if not interpreter:
            raise ValueError("None interpreter provided.")
        if not signature_key:
            raise ValueError("None signature_key provided.")
        core = interpreter._core  # noqa: SLF001  # LiteRT gives it no public name
        signatures = core.signatures()
        if signature_key not in signatures:
            raise ValueError(f'Invalid signature_key provided: "{signature_key}".')
        self._interpreter, self._core = interpreter, core
        self._signature_key = signature_key
        self._signature_def = signatures[signature_key]
        self._inputs: dict[str, int] = self._signature_def["inputs"]
        self._outputs = self._signature_def["outputs"].items()
        self._subgraph_index = core.session.catalog.signatures[signature_key].subgraph
        core.session.guests.add(self)

    def __call__(self, **kwargs: Any) -> dict[str, Any]:
        """Resizes the inputs to the arrays given by name, allocates, runs, and returns name ->
        array (copies).

        Raises `ValueError` for a wrong number of inputs, an unknown name, a wrong type;
        `RuntimeError` if the model cannot take the shapes or a run fails.
        """
        if len(kwargs) != len(self._inputs):
            raise ValueError(
                "Invalid number of inputs provided for running a SignatureDef, "
                f"expected {len(self._inputs)} vs provided {len(kwargs)}"
            )
        return self._core.run_signature(self._signature_key, kwargs)

    def get_input_details(self) -> dict[str, dict[str, Any]]:
        """Name -> details dictionary of each input, as in `Interpreter.get_input_details`."""
        details, subgraph = self._core.details, self._subgraph_index
        return {name: details(index, subgraph) for name, index in self._inputs.items()}

    def get_output_details(self) -> dict[str, dict[str, Any]]:
        """Name -> details dictionary of each output."""
        details, subgraph = self._core.details, self._subgraph_index
        return {name: details(index, subgraph) for name, index in self._outputs}


class Interpreter(Closing):
    """A TFLite model, run as LiteRT's interpreter runs it: set tensors by index, invoke, get
    tensors.

    *model_path* (str, bytes or PathLike) or *model_content* (bytes) names the model. *num_threads*
    is 1 or more. *experimental_op_resolver_type* BUILTIN_REF runs on the reference device alone, in
    the accuracy class `exact`; BUILTIN_WITHOUT_DEFAULT_DELEGATES on LiteRT's optimised kernels
    without XNNPACK (without LiteRT like BUILTIN_REF, with a warning); the others on every usable
    device. *experimental_delegates* are added in order (`modify_graph_with_delegate`), and kept
    alive. *experimental_disable_delegate_clustering* keeps nodes in the file's order if a delegate
    takes some of them; *experimental_disable_delegate_node_fusion* gives each a kernel of its own.
    *experimental_preserve_all_tensors* keeps every intermediate value except those inside kernels.
    *devices*, *cache* and *policy* are Penstock's, as in `penstock.compile`. The other experimental
    arguments tune LiteRT's delegates and have no effect.

    Not thread-safe: a call during another raises `StateError`. Use after `close()` raises
    `ClosedError`. Everything else raises what LiteRT raises, with LiteRT's words first, then
    Penstock's, whose error is the cause. The constructor raises `ValueError` for a model that
    cannot be opened, and its subclass `InputError` for *devices* or a *policy* that
    `penstock.compile` rejects.
    """

    def __init__(
        self,
        model_path: str | bytes | os.PathLike[Any] | None = None,
        model_content: bytes | None = None,
        experimental_delegates: Sequence[Any] | None = None,
        num_threads: int | None = None,
        experimental_op_resolver_type: OpResolverType = OpResolverType.AUTO,
        experimental_preserve_all_tensors: bool = False,
        experimental_disable_delegate_clustering: bool = False,
        experimental_default_delegate_latest_features: bool = False,
        experimental_compress_quantization_zero_points: bool = False,
        experimental_disable_delegate_node_fusion: bool = False,
        experimental_force_delegate_node_profiling: bool = False,
        *,
        devices: Sequence[str | DeviceInfo | Device] | None = None,
        cache: object = True,
        policy: Policy | None = None,
    ) -> None:
        resolved = placed_by(experimental_op_resolver_type)
        optimised = experimental_op_resolver_type.name in ("AUTO", "BUILTIN")
        if experimental_preserve_all_tensors and optimised:
            warnings.warn(texts.PRESERVED, stacklevel=2)
        if num_threads is not None:
            if not isinstance(num_threads, int):
                raise ValueError("type of num_threads should be int")
            if num_threads < 1:
                raise ValueError("num_threads should >= 1")
        flags: tuple[object, ...] = (
            experimental_preserve_all_tensors,
            experimental_disable_delegate_clustering,
            experimental_default_delegate_latest_features,
            experimental_compress_quantization_zero_points,
            experimental_disable_delegate_node_fusion,
            experimental_force_delegate_node_profiling,
        )
        for flag in flags:
            if flag is not None and not hasattr(type(flag), "__bool__"):
                raise TypeError(
                    "CreateWrapper(): incompatible function arguments. An option is True or "
                    f"False, not {flag!r}"
                )
        check_kind(policy, (Policy, type(None)), "policy must be a Policy")
        try:
            chosen = () if devices is None else manager.choose(devices)
        except PlacementError as error:
            raise InputError(str(error)) from error
        if policy is not None:
            check_rules(policy, chosen, manager)
        if resolved.note and devices is None:
            warnings.warn(resolved.note, stacklevel=2)
        if bool(model_path) == bool(model_content):
            raise ValueError(texts.TWO_MODELS if model_path else texts.NO_MODEL)
        file = open_path(model_path) if model_path else open_content(model_content)
        added: list[Delegate] = []
        if experimental_delegates:
            from penstock.tflite.delegates import every

            added = every(experimental_delegates)
        options = {
            "devices": resolved.devices if devices is None else devices,
            "num_threads": None if num_threads is None else int(num_threads),
            "cache": cache,
            "policy": resolved.policy if devices is None and policy is None else policy,
        }
        self._compress = experimental_compress_quantization_zero_points
        session = Session(
            file,
            options,
            preserve=experimental_preserve_all_tensors,
            compress_zero_points=self._compress,
            cluster_nodes=not experimental_disable_delegate_clustering,
            fuse_nodes=not experimental_disable_delegate_node_fusion,
        )
        self._core = Core(session)
        # Programs for LiteRT access the interpreter's delegates by this name.
        self._delegates = added
        try:
            for delegate in added:
                self._core.add_delegate(delegate)
        except BaseException:
            self._core.close()
            raise

    def allocate_tensors(self) -> None:
        """Compiles for the present input shapes and allocates the memory; again only if a shape has
        changed.

        Raises `RuntimeError` if the model cannot run, and while views of the memory exist.
        """
        with self._core as graph:
            self._core.ensure_unshared()
            graph.allocate()

    def invoke(self) -> None:
        """Runs the model on its inputs.

        Raises `RuntimeError` before `allocate_tensors`, while views exist, and if the run fails.
        """
        core = self._core
        with core as graph:
            if core.session.guests.present:
                core.ensure_unshared()
            graph.invoke()

    def resize_tensor_input(self, input_index: int, tensor_size: Any, strict: bool = False) -> None:
        """Gives an input the shape *tensor_size*, after the next `allocate_tensors`.

        *strict* allows only dimensions that are -1 in `shape_signature` to change. Raises
        `ValueError` for a wrong shape, `RuntimeError` for a tensor that cannot have it, and while
        views exist.
        """
        with self._core as graph:
            self._core.ensure_unshared()
            dims = np.array(tensor_size, dtype=np.int32)
            graph.resize(as_index(input_index, "ResizeInputTensor"), dims, strict=strict)

    def set_tensor(self, tensor_index: int, value: Any) -> None:
        """Copies *value* into a tensor of the main subgraph: same type, same shape, nothing is
        cast.

        Raises `ValueError` for another type or shape, an unknown index, a constant, or before
        allocation.
        """
        core = self._core
        if type(tensor_index) is int and type(value) is np.ndarray and tensor_index in core.direct:
            memory = core.direct[tensor_index]
            if (
                value.dtype is memory.dtype
                and value.shape == memory.shape
                and core.busy.acquire(blocking=False)
            ):
                try:
                    memory[...] = value
                finally:
                    core.busy.release()
                return
        with core as graph:
            graph.set(as_index(tensor_index, "SetTensor"), value)

    def get_tensor(self, tensor_index: int, subgraph_index: int = 0) -> Any:
        """A copy of a tensor's value, a number for a scalar.

        Inputs, outputs, constants and variables always have a value; intermediate tensors with
        `experimental_preserve_all_tensors`. Raises `ValueError` if there is no value, or no such
        tensor.
        """
        core = self._core
        main = type(subgraph_index) is int and subgraph_index == 0
        if main and type(tensor_index) is int and tensor_index in core.direct:
            memory = core.direct[tensor_index]
            if core.busy.acquire(blocking=False):
                try:
                    return memory.copy()
                finally:
                    core.busy.release()
        with core:
            subgraph = as_index(subgraph_index, "GetTensor")
            return core.get(as_index(tensor_index, "GetTensor"), subgraph)

    def tensor(self, tensor_index: int) -> Callable[[], Any]:
        """A function that returns a view of a tensor's present memory.

        While a view, or anything derived from it, is alive, `invoke`, `allocate_tensors` and
        `resize_tensor_input` raise `RuntimeError`. The function itself may be kept. It raises
        `ValueError` as `get_tensor` does. String tensors are copies, views of constants are
        read-only.
        """

        def view() -> Any:
            with self._core as graph:
                return graph.view(as_index(tensor_index, "tensor"))

        return view

    def reset_all_variables(self) -> None:
        """Resets every variable tensor. Resource variables keep their values, as in LiteRT."""
        with self._core:
            self._core.reset_variables()

    def get_input_details(self) -> list[dict[str, Any]]:
        """The details dictionary of each input of the main subgraph, in order.

        `name` (str), `index` (int), `shape` and `shape_signature` (int32 arrays, -1 for unknown),
        `dtype` (NumPy class), `quantization` ((scale, zero point), (0.0, 0) where not per-tensor),
        `quantization_parameters` (`scales` float32, `zero_points` int32, `quantized_dimension`,
        `block_size`), `sparsity_parameters`.
        """
        return [self._core.details(i, 0) for i in self._main.inputs]

    def get_output_details(self) -> list[dict[str, Any]]:
        """The details dictionary of each output. After `invoke` it has all shapes."""
        return [self._core.details(i, 0) for i in self._main.outputs]

    def get_tensor_details(self, subgraph_index: int = 0) -> list[dict[str, Any]]:
        """The details of each tensor of a subgraph. Raises `ValueError` for an unknown one."""
        count = self.num_subgraphs()
        if subgraph_index < 0 or subgraph_index >= count:
            raise ValueError(
                f"subgraph_index is out of range: {subgraph_index} for the model,"
                f" which has {count} subgraphs."
            )
        graph = self._core.graph(as_index(subgraph_index, "NumTensors"))
        return [graph.details(i) for i in range(len(graph.catalog.tensors))]

    def num_subgraphs(self) -> int:
        """The number of subgraphs in the file."""
        self._core.check_open()
        return len(self._core.session.catalog.subgraphs)

    def get_signature_list(self) -> dict[str, dict[str, list[str]]]:
        """Signature -> {"inputs": names, "outputs": names}."""
        return {
            key: {kind: list(names) for kind, names in ends.items()}
            for key, ends in self._get_full_signature_list().items()
        }

    def get_signature_runner(self, signature_key: str | None = None) -> SignatureRunner:
        """A callable that runs one signature; None means the only one.

        Raises `ValueError` for an unknown key, and for None unless there is exactly one signature.
        """
        signatures = self._get_full_signature_list()
        if signature_key is None:
            if len(signatures) != 1:
                raise ValueError(
                    f"SignatureDef signature_key is None and model has {len(signatures)} "
                    "Signatures. None is only allowed when the model has 1 SignatureDef"
                )
            signature_key = next(iter(signatures))
        return SignatureRunner(interpreter=self, signature_key=signature_key)

    @property
    def experimental_compress_quantization_zero_points(self) -> bool:
        """Whether details show equal zero points of a tensor as one."""
        return self._compress

    def modify_graph_with_delegate(self, delegate: object) -> None:
        """Adds a delegate of `penstock.delegates` after the present ones. Experimental until 1.0.

        The graph is then ready to run if it was before, or if every delegate requires static
        shapes. Raises `DelegateError` (a `RuntimeError`) with the delegate and the failed stage;
        the graph is then unchanged. Raises `AttributeError` for another object, `RuntimeError`
        while views exist.
        """
        from penstock.tflite.delegates import checked

        with self._core:
            self._core.ensure_unshared()
            self._core.add_delegate(checked(delegate))

    def set_buffer_handle(self, tensor_index: int, handle: int, delegate: object) -> None:
        """Moves a tensor of the main subgraph to buffer *handle* of *delegate*. Experimental until
        1.0.

        *handle* is 0 or more; -1 is none. The tensor's previous buffer is freed. A tensor that no
        operator writes, such as an input, then has the buffer's content as its value, until
        `set_tensor` or a view changes it. A computed tensor must be read or written by kernels of
        that delegate, which use the buffer. A buffer that holds several tensors is freed when the
        last one leaves it. Raises `ValueError` for any other tensor, and for a delegate that was
        not added.
        """
        with self._core as graph:
            index = as_index(tensor_index, "SetBufferHandle")
            graph.set_buffer_handle(index, handle, delegate)

    def set_allow_buffer_handle_output(self, allow: bool) -> None:
        """Sets whether `invoke` leaves outputs in their buffers until they are read; by default it
        copies them back. Experimental until 1.0.
        """
        with self._core:
            self._core.session.allow_buffer_handle_output = bool(allow)

    def ensure_tensor_data_is_readable(self, tensor_index: int) -> None:
        """Copies a stale tensor of the main subgraph back from its buffer. Experimental until 1.0.

        Reading it does so, too. Raises `DelegateError` if the delegate cannot.
        """
        with self._core as graph:
            graph.make_readable(as_index(tensor_index, "EnsureTensorDataIsReadable"))

    def close(self) -> None:
        """Releases compiled models; a second call does nothing. Views and arrays stay valid."""
        self._core.close()

    def __enter__(self) -> Self:
        self._core.check_open()
        return self

    def __copy__(self) -> Self:
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        self._core.session.guests.add(made)
        return made

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"cannot pickle {type(self).__name__!r} object")

    @property
    def _main(self) -> SubgraphEntry:
        self._core.check_open()
        return self._core.session.catalog.subgraphs[0]

    def _safe_to_run(self) -> bool:
        return not self._core.session.guests

    def _ensure_safe(self) -> None:
        self._core.ensure_unshared()

    def _native_handle(self) -> NoReturn:
        raise NotAvailable("there is no native interpreter to point to")

    def _get_full_signature_list(self) -> dict[str, dict[str, dict[str, int]]]:
        return self._core.signatures()

    def _get_tensor_details(self, tensor_index: Any, subgraph_index: Any) -> dict[str, Any]:
        return self._core.details(int(tensor_index), int(subgraph_index))

    def _get_ops_details(self) -> list[dict[str, Any]]:
        count = len(self._main.operators) + len(self._core.graph(0).delegate_nodes)
        return [self._get_op_details(i) for i in range(count)]

    def _get_op_details(self, op_index: int) -> dict[str, Any]:
        operators = self._main.operators
        if 0 <= op_index < len(operators):
            operator = operators[op_index]
            name, inputs, outputs = operator.name, operator.inputs, operator.outputs
        else:
            kernels = {k.index: k for k in self._core.graph(0).delegate_nodes}
            if op_index not in kernels:
                raise ValueError("Invalid node index")
            kernel = kernels[op_index]
            name = kernel.registration.builtin_name
            inputs, outputs = kernel.node.inputs, kernel.node.outputs
        operands, results = (
            [self._core.details(i, 0)["dtype"] for i in indexes if i != -1]
            for indexes in (inputs, outputs)
        )
        return {
            "index": int(op_index),
            "op_name": name,
            "inputs": np.array(inputs, np.int32),
            "outputs": np.array(outputs, np.int32),
            "operand_types": operands,
            "result_types": results,
        }


class InterpreterWithCustomOps(Interpreter):
    """An `Interpreter` with the names of functions that add custom operators to LiteRT.

    Those functions are native code of LiteRT. The constructor raises `ValueError` for a name and
    `NotAvailable` for a function. In Penstock a driver adds an operator.
    """

    def __init__(self, custom_op_registerers: Sequence[Any] | None = None, **kwargs: Any) -> None:
        for registerer in custom_op_registerers or ():
            if isinstance(registerer, str):
                raise ValueError(  # noqa: TRY004  # LiteRT's class
                    f"Looking up symbol '{registerer}' failed: functions that register custom "
                    "operators with LiteRT cannot be called; write a driver for the operator"
                )
            raise NotAvailable(
                "custom operators come with a driver, not with a registering function"
            )
        super().__init__(**kwargs)
