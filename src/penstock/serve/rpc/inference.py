"""Messages of inferences to requests, and answers to messages."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from penstock.hal import CancelToken
from penstock.ir import DType, NDArray
from penstock.serve import datatypes
from penstock.serve.datatypes import NAMES, dtype_named, shape_of
from penstock.serve.errors import InvalidRequest, RequestTooLarge
from penstock.serve.receipts import parameters_of
from penstock.serve.rpc.schema import protocol
from penstock.serve.settings import Limits
from penstock.serve.shared_memory import OutputPlaces, Regions, place_in
from penstock.serve.values import (
    LONGEST_TIMEOUT_US,
    InferAnswer,
    InferInput,
    InferRequest,
    check_parameters,
    deadline_of,
    priority_of,
)

CONTENTS: Final[dict[DType, str]] = {
    DType.BOOL: "bool_contents",
    **dict.fromkeys((DType.INT8, DType.INT16, DType.INT32), "int_contents"),
    **dict.fromkeys((DType.UINT8, DType.UINT16, DType.UINT32), "uint_contents"),
    DType.INT64: "int64_contents",
    DType.UINT64: "uint64_contents",
    DType.FLOAT32: "fp32_contents",
    DType.FLOAT64: "fp64_contents",
    DType.STRING: "bytes_contents",
}


def size_of(message: Any) -> int:
    """Bytes of the tensors in a request."""
    return sum(map(len, message.raw_input_contents)) or message.ByteSize()


def parse(
    message: Any,
    limits: Limits,
    regions: Regions,
    cancel: CancelToken,
    seconds: float | None,
) -> InferRequest:
    """The request in a `ModelInferRequest`, with tensors in *regions*; its client waits *seconds*,
    None for ever.

    Raises `InvalidRequest`, `RequestTooLarge`.
    """
    now_ns = time.monotonic_ns()
    if max(len(message.inputs), len(message.outputs)) > limits.tensors:
        raise RequestTooLarge(f"a request has at most {limits.tensors} inputs and outputs")
    parameters = values_of(message.parameters)
    check_parameters(parameters)
    raw = iter(message.raw_input_contents)
    is_raw = len(message.raw_input_contents) > 0
    inputs, copied = [], 0
    for tensor in message.inputs:
        where = f"input {tensor.name!r}"
        dtype = dtype_named(tensor.datatype, where)
        shape = shape_of(tuple(tensor.shape), limits, where)
        place = place_in(values_of(tensor.parameters), limits.body, where)
        if place is not None:
            array, count = regions.load(place, dtype, shape, where)
            copied += count
        elif is_raw:
            content = next(raw, None)
            if content is None or tensor.HasField("contents"):
                raise InvalidRequest(f"{where} needs one of raw_input_contents, and no contents")
            array = datatypes.from_bytes(content, dtype, shape, where)
        else:
            array = _from_contents(tensor.contents, dtype, shape, where)
        inputs.append(InferInput(tensor.name, tensor.datatype, array))
    if next(raw, None) is not None:
        raise InvalidRequest("there are more raw_input_contents than inputs that need one")
    places = {}
    for output in message.outputs:
        where = f"output {output.name!r}"
        if "classification" in output.parameters:
            raise InvalidRequest(f"{where}: classification is not supported")
        place = place_in(values_of(output.parameters), limits.body, where)
        if place is not None:
            places[output.name] = place
    deadline_ns = deadline_of(parameters.get("timeout"), now_ns)
    # A client without a timeout has one of centuries.
    if seconds is not None and seconds < LONGEST_TIMEOUT_US / 1e6:
        client_ns = now_ns + int(seconds * 1e9)
        deadline_ns = client_ns if deadline_ns is None else min(client_ns, deadline_ns)
    return InferRequest(
        message.model_name,
        tuple(inputs),
        message.model_version,
        message.id,
        tuple(dict.fromkeys(output.name for output in message.outputs)),
        priority_of(parameters.get("priority")),
        deadline_ns,
        cancel,
        parameters.get("receipt") is True,
        OutputPlaces(regions, places) if places else None,
        copied,
    )


def rendered(answer: InferAnswer, request: InferRequest) -> Any:
    """The `ModelInferResponse` of *answer*; tensors that are not in shared memory are raw.

    Raises `InvalidRequest`.
    """
    message = protocol().messages["ModelInferResponse"](
        model_name=answer.model, model_version=answer.version, id=answer.id
    )
    placed, copied = request.places, answer.region_copied
    for name, array in answer.outputs.items():
        output = message.outputs.add(
            name=name, datatype=NAMES[datatypes.dtype_of_array(array)], shape=array.shape
        )
        if placed is not None and name in placed.places:
            place = placed.places[name]
            copied += placed.regions.store(place, array)
            output.parameters["shared_memory_region"].string_param = place.region
            output.parameters["shared_memory_byte_size"].int64_param = place.byte_size
            output.parameters["shared_memory_offset"].int64_param = place.offset
            # Clients find an output's content by its position.
            message.raw_output_contents.append(b"")
        else:
            message.raw_output_contents.append(datatypes.to_bytes(array))
    for name, value in parameters_of(replace(answer, region_copied=copied)).items():
        message.parameters[name].string_param = str(value)
    return message


def values_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a message's parameters by name."""
    found = {}
    for name, parameter in parameters.items():
        chosen = parameter.WhichOneof("parameter_choice")
        if chosen is not None:
            found[name] = getattr(parameter, chosen)
    return found


def _from_contents(contents: Any, dtype: DType, shape: tuple[int, ...], where: str) -> NDArray:
    """The array in the field of *contents* that belongs to *dtype*. Raises `InvalidRequest`."""
    field = CONTENTS.get(dtype)
    if field is None:
        raise InvalidRequest(f"{where}: {NAMES[dtype]} must be given as raw_input_contents")
    values = list(getattr(contents, field))
    if len(values) != math.prod(shape):
        raise InvalidRequest(
            f"{where}: {field} has {len(values)} elements, shape {list(shape)} needs others"
        )
    if dtype is DType.STRING:
        array: NDArray = np.empty(len(values), object)
        array[:] = values
        return array.reshape(shape)
    return datatypes.from_list(values, dtype, shape, where)
