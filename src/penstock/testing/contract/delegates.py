"""The suite every delegate must pass: the promises that interpreters and other delegates rely on.

    subject = Subject(MyDelegate, Path("net.tflite").read_bytes())
    for result in run_delegate_contract(subject): print(result.check, result.outcome,
    result.message)

A check takes a `Subject`, returns when the promise holds, and raises `Violation` when it is broken
or `NotCovered` when this subject cannot show it. Experimental until 1.0.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
from msgspec import Struct

from penstock.delegates import (
    NULL_BUFFER_HANDLE,
    Delegate,
    DelegateContext,
    DelegateFlags,
    DelegateTensor,
)
from penstock.errors import DelegateError
from penstock.ir import NDArray
from penstock.testing.contract.promise import NotCovered, judge, require
from penstock.testing.contract.runner import CheckResult
from penstock.tflite import Interpreter

HOST: Final = ("reference",)
"""The device that runs the nodes outside the delegate, and computes the results to compare with."""


class Subject(Struct, frozen=True):
    """A delegate and a model to test it on.

    *make* creates the delegate, once for each check. *content* is a TFLite file; the delegate takes
    some of its nodes. *inputs* are arrays for the file's inputs, in order; None generates some.
    Results may differ from the reference device's by *rtol* and *atol*; both 0 requires the same
    bits.
    """

    make: Callable[[], Delegate]
    content: bytes
    inputs: tuple[NDArray, ...] | None = None
    rtol: float = 1e-4
    atol: float = 1e-5


DelegateCheck: TypeAlias = Callable[[Subject], None]


class Bench:
    """Interpreters with and without a subject's delegate, and the buffers that it freed."""

    def __init__(self, subject: Subject) -> None:
        self.subject, self.delegate = subject, subject.make()
        self.freed: list[int] = []
        free = self.delegate.free_buffer_handle

        def watched(context: DelegateContext, handle: int) -> None:
            self.freed.append(handle)
            free(context, handle)

        self.delegate.free_buffer_handle = watched  # type: ignore[method-assign]  # to watch it
        self.plain = interpreter(subject.content, [])
        self.delegated = interpreter(subject.content, [self.delegate])
        details = self.delegated.get_input_details()
        self.inputs = list(subject.inputs or drawn(details, 0))

    def compare(self, inputs: Sequence[NDArray], subject: str) -> None:
        """Runs both interpreters and compares their outputs."""
        got, wanted = (run(i, inputs) for i in (self.delegated, self.plain))
        self.hold(got, wanted, subject)

    def hold(self, got: Sequence[Any], wanted: Sequence[Any], subject: str) -> None:
        """Raises `Violation` if results differ by more than the subject allows."""
        for position, (a, b) in enumerate(zip(got, wanted, strict=True)):
            x, y = np.asarray(a), np.asarray(b)
            require(x.shape == y.shape, f"{subject}: output {position} is {x.shape}, not {y.shape}")
            if x.dtype.hasobject or x.dtype == np.bool_:
                close = np.array_equal(x, y)
            else:
                rule = self.subject
                x, y = (v.astype("c16" if v.dtype.kind == "c" else "f8") for v in (x, y))
                close = np.allclose(x, y, rule.rtol, rule.atol, equal_nan=True)
            require(close, f"{subject}: output {position} is {x.flat[:4]}, not {y.flat[:4]}")

    def close(self) -> None:
        self.delegated.close()
        self.plain.close()


def interpreter(content: bytes, delegates: list[Delegate]) -> Interpreter:
    """An interpreter on the reference device and *delegates*, allocated."""
    made = Interpreter(
        model_content=content, experimental_delegates=delegates, devices=HOST, cache=False
    )
    made.allocate_tensors()
    return made


def nodes_of(on: Interpreter) -> int:
    """The number of nodes of its graph."""
    return len(on._get_ops_details())  # noqa: SLF001  # LiteRT's own name for it


def run(on: Interpreter, inputs: Sequence[NDArray]) -> list[Any]:
    """Sets the inputs, invokes, and gets the outputs."""
    for detail, value in zip(on.get_input_details(), inputs, strict=True):
        on.set_tensor(detail["index"], value)
    on.invoke()
    return [on.get_tensor(d["index"]) for d in on.get_output_details()]


def drawn(details: Sequence[dict[str, Any]], seed: int) -> list[NDArray]:
    """Arrays for inputs with these details, always the same for one *seed*."""
    rng = np.random.default_rng(seed)
    found: list[NDArray] = []
    for detail in details:
        dtype, shape = np.dtype(detail["dtype"]), tuple(detail["shape"])
        if dtype.kind == "f":
            found.append(rng.normal(size=shape).astype(dtype))
        elif dtype.kind in "iu" and dtype.itemsize == 1:
            info = np.iinfo(dtype)
            found.append(rng.integers(info.min, info.max, shape, dtype, endpoint=True))
        elif dtype.kind in "iub":
            found.append(rng.integers(0, 2, shape).astype(dtype))
        else:
            raise NotCovered(f"inputs of {dtype} are not drawn; the subject must bring them")
    return found


@contextmanager
def bench(subject: Subject) -> Iterator[Bench]:
    """Opens a subject's interpreters within the block.

    Raises `NotCovered` if the delegate takes no nodes of the file.
    """
    at_work = Bench(subject)
    try:
        if nodes_of(at_work.delegated) == nodes_of(at_work.plain):
            raise NotCovered("the delegate takes no node of this file")
        yield at_work
    finally:
        at_work.close()


def check_results_are_those_without_it(subject: Subject) -> None:
    """A graph's results do not depend on which delegate computes its nodes."""
    with bench(subject) as b:
        b.compare(b.inputs, "the first run")


def check_runs_do_not_depend_on_each_other(subject: Subject) -> None:
    """A run with other inputs between two runs does not change results or variables."""
    with bench(subject) as b:
        details = b.delegated.get_input_details()
        others = b.inputs if subject.inputs is not None else drawn(details, 1)
        for count, inputs in enumerate((b.inputs, others, b.inputs, b.inputs)):
            b.compare(inputs, f"run {count + 1}")
        b.delegated.reset_all_variables()
        b.plain.reset_all_variables()
        b.compare(b.inputs, "the run after reset_all_variables")


def check_inputs_are_only_read(subject: Subject) -> None:
    """A run does not change its inputs."""
    with bench(subject) as b:
        run(b.delegated, b.inputs)
        for detail, value in zip(b.delegated.get_input_details(), b.inputs, strict=True):
            kept = np.asarray(b.delegated.get_tensor(detail["index"]))
            same = np.array_equal(kept, value, equal_nan=value.dtype.kind == "f")
            require(same, f"{detail['name']!r} has changed")


def check_results_belong_to_the_caller(subject: Subject) -> None:
    """Outputs that were read stay unchanged in the next run, and after the interpreter closes."""
    with bench(subject) as b:
        before = run(b.delegated, b.inputs)
        copies = [np.array(v) for v in before]
        run(b.delegated, [np.zeros_like(v) for v in b.inputs])
        b.delegated.close()
        same = all(map(np.array_equal, before, copies))
        require(same, "an array that was handed out has changed")


def check_outputs_may_stay_in_buffers(subject: Subject) -> None:
    """Outputs in buffers read the same as outputs copied back, at any time."""
    with bench(subject) as b:
        b.delegated.set_allow_buffer_handle_output(True)
        for count, inputs in enumerate((b.inputs, [np.zeros_like(v) for v in b.inputs])):
            b.compare(inputs, f"run {count + 1} with outputs in buffers")
        b.delegated.invoke()
        b.delegated.set_allow_buffer_handle_output(False)
        b.plain.invoke()
        outputs = [d["index"] for d in b.plain.get_output_details()]
        for index in outputs:
            b.delegated.ensure_tensor_data_is_readable(index)
        got, wanted = ([i.get_tensor(o) for o in outputs] for i in (b.delegated, b.plain))
        b.hold(got, wanted, "outputs read later")


def check_every_buffer_is_freed_once(subject: Subject) -> None:
    """A buffer that a kernel replaces is freed after that run.

    When the interpreter closes, each buffer that holds a tensor is freed once.
    """
    with bench(subject) as b:
        run(b.delegated, b.inputs)
        seen = Handles()
        seen_by = interpreter(subject.content, [b.delegate, seen])
        held: set[int] = set()
        for _ in range(3):
            b.freed.clear()
            run(seen_by, b.inputs)
            before, held = held, seen.handles()
            kept = before - held - set(b.freed)
            require(not kept, f"buffers {sorted(kept)} were replaced, and not freed")
        b.freed.clear()
        seen_by.close()
        seen_by.close()
        if not held:
            raise NotCovered("the delegate leaves no tensor in a buffer")
        twice = {h for h in b.freed if b.freed.count(h) > 1}
        require(not twice, f"buffers {sorted(twice)} were freed twice")
        require(held <= set(b.freed), f"buffers {sorted(held - set(b.freed))} were never freed")


def check_two_interpreters_share_it(subject: Subject) -> None:
    """One delegate serves several interpreters. Closing one does not affect another."""
    with bench(subject) as b:
        second, plain = (interpreter(subject.content, d) for d in ([b.delegate], []))
        b.hold(run(second, b.inputs), run(plain, b.inputs), "the second interpreter")
        b.compare(b.inputs, "the first beside the second")
        second.close()
        b.compare(b.inputs, "the first after the end of the second")


def check_input_shapes_change(subject: Subject) -> None:
    """After a resize, results equal those without the delegate; also back at the first shape."""
    with bench(subject) as b:
        details = b.plain.get_input_details()
        free = [d for d in details if -1 in d["shape_signature"]]
        if not free:
            raise NotCovered("every input of this file has a fixed shape")
        first = [tuple(d["shape"]) for d in details]
        for step in (1, 2, 0):
            for i in (b.delegated, b.plain):
                for detail, shape in zip(details, first, strict=True):
                    dims = [
                        d + step if s == -1 else d
                        for d, s in zip(shape, detail["shape_signature"], strict=True)
                    ]
                    i.resize_tensor_input(detail["index"], dims)
                i.allocate_tensors()
            inputs = drawn(b.plain.get_input_details(), step)
            b.compare(inputs, f"inputs of {[v.shape for v in inputs]}")


def check_another_that_fails_changes_nothing(subject: Subject) -> None:
    """If a delegate added later fails, this delegate stays in the graph."""
    with bench(subject) as b:
        with suppress(DelegateError):
            b.delegated.modify_graph_with_delegate(Failing())
        b.compare(b.inputs, "after another delegate has failed")


def check_it_goes_without_close(subject: Subject) -> None:
    """An interpreter that is dropped without `close` frees its kernels and buffers."""
    with bench(subject) as b:
        seen = Handles()
        dropped = interpreter(subject.content, [b.delegate, seen])
        run(dropped, b.inputs)
        held = seen.handles()
        b.freed.clear()
        del dropped
        gc.collect()
        require(held <= set(b.freed), f"buffers {sorted(held - set(b.freed))} were never freed")


def check_a_second_time_is_refused_or_harmless(subject: Subject) -> None:
    """A delegate that is added twice is in the graph once."""
    with bench(subject) as b:
        nodes = nodes_of(b.delegated)
        with suppress(DelegateError):
            b.delegated.modify_graph_with_delegate(b.delegate)
        require(nodes_of(b.delegated) == nodes, "it has taken nodes twice")
        b.compare(b.inputs, "after it was added again")


CHECKS: Final[tuple[DelegateCheck, ...]] = (
    check_results_are_those_without_it,
    check_runs_do_not_depend_on_each_other,
    check_inputs_are_only_read,
    check_results_belong_to_the_caller,
    check_outputs_may_stay_in_buffers,
    check_every_buffer_is_freed_once,
    check_two_interpreters_share_it,
    check_input_shapes_change,
    check_another_that_fails_changes_nothing,
    check_it_goes_without_close,
    check_a_second_time_is_refused_or_harmless,
)
"""Every check, in the order in which they run."""


def run_delegate_contract(
    subject: Subject, checks: Sequence[DelegateCheck] = CHECKS
) -> list[CheckResult]:
    """The outcome of each check; nothing is raised."""
    results = []
    for check in checks:
        began = time.perf_counter()
        outcome, message = judge(partial(check, subject))
        name, seconds = getattr(subject.make, "__name__", ""), time.perf_counter() - began
        rule = " ".join((check.__doc__ or "").split())
        results.append(
            CheckResult("delegates", check.__name__, outcome, message, seconds, name, rule)
        )
    return results


class Handles(Delegate):
    """A delegate that takes no nodes and only looks at the graph's tensors."""

    def __init__(self) -> None:
        super().__init__(DelegateFlags.ALLOW_DYNAMIC_TENSORS)
        self._tensors: list[DelegateTensor] = []

    def prepare(self, context: DelegateContext) -> None:
        """Records every tensor that a node reads or writes."""
        nodes = [context.node_and_registration(i)[0] for i in context.execution_plan]
        indexes = {t for n in nodes for t in (*n.inputs, *n.outputs) if t >= 0}
        self._tensors += [context.tensor(i) for i in sorted(indexes)]

    def copy_from_buffer_handle(
        self, context: DelegateContext, handle: int, tensor: DelegateTensor
    ) -> None:
        """Raises: this delegate has no buffers."""

    def handles(self) -> set[int]:
        """The buffers that hold tensors now."""
        return {t.buffer_handle for t in self._tensors} - {NULL_BUFFER_HANDLE}


class Failing(Handles):
    """Fails when it is added."""

    def prepare(self, context: DelegateContext) -> None:
        """Fails."""
        raise RuntimeError("this delegate always fails")
