"""`LyingDevice`: a device that breaks its promises without an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias, TypeVar, get_args

from penstock.errors import GeneralFailure, InputError
from penstock.hal import Device, ExecutionResult, OutputShape, Request, Support, Timing
from penstock.testing.doubles.intercepting import InterceptingDevice
from penstock.testing.doubles.scribbling import Where, damage_outputs, scribble

T = TypeVar("T")

Lie: TypeAlias = Literal[
    "support_length",
    "support_changes",
    "refuses_after_all",
    "output_count",
    "output_shapes",
    "insufficient",
    "values",
    "timing",
    "writes_behind",
    "writes_before",
    "changes_inputs",
]
LIES: Final[tuple[Lie, ...]] = get_args(Lie)
"""Every lie that a `LyingDevice` knows."""

PLACES: Final[tuple[tuple[Lie, Where], ...]] = (
    ("writes_behind", "behind"),
    ("writes_before", "before"),
    ("changes_inputs", "inputs"),
)
"""The lies that are writes, and where a `ScribblingDevice` makes them."""


class LyingDevice(InterceptingDevice):
    """Breaks its promises without an error.

    *support_length*: an answer too few; *support_changes*: a yes becomes a no at every second call;
    *refuses_after_all*: prepares nothing that it supports; *output_count*: a shape too few;
    *output_shapes*: shapes that are wrong; *insufficient*: success that says an output did not fit;
    *values*: outputs whose first eight bytes have every bit the wrong way round; *timing*: more
    time on the device than in the driver; *writes_behind*, *writes_before*, *changes_inputs*:
    writes as those of a `ScribblingDevice`. Other words are an `InputError`. Several lies are told
    at once, of those about shapes only the first.
    """

    def __init__(self, device: Device, *lies: Lie, name: str | None = None) -> None:
        super().__init__(device, name)
        if unknown := {str(lie) for lie in lies} - set(LIES):
            raise InputError(
                f"no lie is named {', '.join(sorted(unknown))}; known: {', '.join(LIES)}"
            )
        self.lies = frozenset(lies)
        self._asked = 0

    def intercept(self, method: str, arguments: tuple[Any, ...], proceed: Callable[[], T]) -> T:
        if method == "prepare_model" and "refuses_after_all" in self.lies:
            raise GeneralFailure(f"{self.name} changed its mind")
        result: Any = proceed()
        if isinstance(result, ExecutionResult):
            result = self._tell(arguments[0], result)
        elif method == "supported_operations":
            result = self._answer(list(result))
        answer: T = result
        return answer

    def _answer(self, answers: list[Support]) -> list[Support]:
        self._asked += 1
        if "support_length" in self.lies:
            return answers[:-1]
        if "support_changes" in self.lies and self._asked % 2 == 0:
            return [Support(supported=False, reason="not today")] * len(answers)
        return answers

    def _tell(self, request: Request, result: ExecutionResult) -> ExecutionResult:
        shapes = list(result.output_shapes) or [OutputShape(())] * len(request.outputs)
        if "values" in self.lies:
            damage_outputs(request)
        for lie, where in PLACES:
            if lie in self.lies:
                scribble(request, where)
        if "output_count" in self.lies:
            return ExecutionResult(tuple(shapes[:-1]) or (shapes[0],) * 2, result.timing)
        if "output_shapes" in self.lies:
            wrong = (OutputShape((*s.dimensions, 3)) for s in shapes)
            return ExecutionResult(tuple(wrong), result.timing)
        if "insufficient" in self.lies:
            small = (OutputShape(s.dimensions, is_sufficient=False) for s in shapes)
            return ExecutionResult(tuple(small), result.timing)
        if "timing" in self.lies:
            return ExecutionResult(result.output_shapes, Timing(2, 1))
        return result
