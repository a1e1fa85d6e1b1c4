"""Files run more than once, by LiteRT and by Penstock's reference driver, state and all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from flatbuffers import flexbuffers

import penstock
from penstock.ir import NDArray

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")

Feeds = Sequence[Sequence[NDArray]]
Results = list[list[NDArray]]

REFERENCE = "BUILTIN_REF"
BUILT_IN = "BUILTIN_WITHOUT_DEFAULT_DELEGATES"
"""LiteRT's kernels for the operators that have no reference registration."""

DELEGATED = "BUILTIN"
"""With XNNPACK, which alone runs some custom operators."""


def litert_runs(content: bytes, feeds: Feeds, resolver: str = REFERENCE) -> Results:
    """What LiteRT gives for each feed in turn, on one interpreter."""
    runner = litert.Interpreter(
        model_content=content,
        num_threads=1,
        experimental_op_resolver_type=litert.OpResolverType[resolver],
    )
    runner.allocate_tensors()
    results: Results = []
    for feed in feeds:
        for detail, array in zip(runner.get_input_details(), feed, strict=True):
            runner.set_tensor(detail["index"], _plain(array))
        runner.invoke()
        results.append(
            [np.array(runner.get_tensor(d["index"])) for d in runner.get_output_details()]
        )
    return results


def _plain(array: NDArray) -> NDArray:
    """Strings as LiteRT takes them: of a fixed length, which must not cut zeros off."""
    if array.dtype != object:
        return array
    return np.array(array.reshape(-1).tolist(), "S").reshape(array.shape)


def penstock_runs(content: bytes, feeds: Feeds) -> Results:
    """What the reference driver gives for each feed in turn, on one State."""
    with penstock.compile(penstock.load(content), devices=["reference"], cache=None) as compiled:
        return [[np.asarray(o) for o in compiled.run(list(feed))] for feed in feeds]


def assert_same_runs(
    content: bytes, feeds: Feeds, resolver: str = REFERENCE, tolerance: float = 0.0
) -> Results:
    """Both give the same: integers and strings exactly, floats within *tolerance* of the largest
    finite one. Returns what they give.
    """
    wanted, got = litert_runs(content, feeds, resolver), penstock_runs(content, feeds)
    for run, (theirs, ours) in enumerate(zip(wanted, got, strict=True)):
        for output, (a, b) in enumerate(zip(theirs, ours, strict=True)):
            where = f"run {run}, output {output}"
            assert (a.dtype, a.shape) == (b.dtype, b.shape), where
            if a.dtype.kind in "fc" and tolerance:
                largest = np.max(np.abs(a[np.isfinite(a)]), initial=1e-30)
                np.testing.assert_allclose(b, a, 0, tolerance * largest, err_msg=where)
            else:
                np.testing.assert_array_equal(b, a, where)
    return got


def strings(*items: str | bytes) -> NDArray:
    """A vector of strings as Penstock holds them."""
    result: NDArray = np.empty(len(items), object)
    result[:] = [i.encode() if isinstance(i, str) else i for i in items]
    return result


def flexible(options: Mapping[str, Any]) -> bytes:
    """Custom options: a FlexBuffers map of numbers and booleans."""
    builder = flexbuffers.Builder()
    with builder.Map():
        for name, value in options.items():
            if isinstance(value, bool):
                builder.Bool(name, value)
            elif isinstance(value, int):
                builder.Int(name, value)
            else:
                builder.Float(name, value)
    return bytes(builder.Finish())


def custom(code: str, options: bytes) -> dict[str, Any]:
    """The attributes of a custom operator."""
    return {"custom_code": code, "custom_options": options}
