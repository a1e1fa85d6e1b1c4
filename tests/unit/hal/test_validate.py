"""The argument checks that all drivers share, rule by rule (NNAPI sections 5.2 and 6.2)."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from penstock import hal
from penstock.errors import GeneralFailure, InvalidArgument, MissedDeadlinePersistent
from penstock.hal.capabilities import least_class
from penstock.hal.validate import validate_fenced
from penstock.ir import DataLocation, DType, Model, ModelBuilder, Shape
from penstock.testing.contract.cases import every_case
from penstock.testing.contract.mutations import request_mutations
from penstock.testing.contract.trial import Kind, Trial
from tests.checked import does_not_raise

F32 = DType.FLOAT32
CONFIG = hal.ExecutionConfig()
POOL = hal.Memory("ashmem", 0, 1000)


def model(shape: Shape = (2, 3), dtype: DType = F32, result: Shape = (2, 3)) -> Model:
    b = ModelBuilder()
    x = b.input(dtype, shape, "x")
    attributes = {"new_shape": ()} if dtype is DType.STRING else None
    return b.build(b.operation("RESHAPE", [x], [(dtype, result)], attributes))


def pool(length: int, *dimensions: int, offset: int = 0, padding: int = 0) -> hal.PoolArgument:
    return hal.PoolArgument(DataLocation(0, offset, length), dimensions, padding)


def host(*shape: int, dtype: Any = np.float32) -> hal.HostMemory:
    return hal.HostMemory(np.zeros(shape, dtype))


def flat(nbytes: int) -> hal.HostMemory:
    return hal.HostMemory(np.zeros(nbytes, np.uint8))


def words(nbytes: int, *dimensions: int) -> hal.HostMemory:
    return hal.HostMemory(np.zeros(nbytes, np.uint8), dimensions)


def frozen(*shape: int) -> hal.HostMemory:
    array = np.zeros(shape, np.float32)
    array.flags.writeable = False
    return hal.HostMemory(array)


def strided() -> hal.HostMemory:
    return hal.HostMemory(np.zeros((2, 6), np.float32)[:, ::2])


def check(given: hal.RequestArgument, wanted: hal.RequestArgument, of: Model | None = None) -> None:
    hal.validate_request(of or model(), hal.Request((given,), (wanted,), (POOL,)), CONFIG)


GOOD_IN, GOOD_OUT = pool(24), pool(24, offset=64)
UNKNOWN = model((None, 3), result=(None, 3))
NO_RANK = model(None, result=None)
INT4 = model((3,), DType.INT4, (3,))
STRINGS = model((2,), DType.STRING, (2,))
MANY_STRINGS = model((None,), DType.STRING, (None,))


@pytest.mark.parametrize(
    ("given", "wanted", "of"),
    [
        (GOOD_IN, GOOD_OUT, None),
        (pool(24, 2, 3), pool(24, 2, 3), None),
        (pool(24, offset=976), GOOD_OUT, None),
        (pool(24, padding=976), GOOD_OUT, None),
        (GOOD_IN, pool(100), None),
        (host(2, 3), host(2, 3), None),
        (frozen(2, 3), host(2, 3), None),
        (host(2, 3), pool(24), None),
        (hal.TokenArgument(1), hal.TokenArgument(2), None),
        (GOOD_IN, hal.NO_VALUE_ARGUMENT, None),
        (pool(60, 5, 3), pool(60), UNKNOWN),
        (pool(60, 5, 3), pool(0), UNKNOWN),
        (pool(0, 0, 3), pool(60), UNKNOWN),
        (host(5, 3), flat(7), UNKNOWN),
        (host(5, 3), host(5, 3), UNKNOWN),
        (pool(20, 5), flat(7), NO_RANK),
        (host(1, 2, 3), flat(7), NO_RANK),
        (pool(3), pool(3), INT4),
        (pool(17, 2), pool(99), STRINGS),
        (words(17, 2), flat(99), STRINGS),
        (words(17, 5), flat(99), MANY_STRINGS),
    ],
)
def test_valid_request_is_accepted(
    given: hal.RequestArgument, wanted: hal.RequestArgument, of: Model | None
) -> None:
    with does_not_raise():
        check(given, wanted, of)


@pytest.mark.parametrize(
    ("given", "wanted", "of", "complaint"),
    [
        (pool(23), GOOD_OUT, None, r"input 0 \(x\): 23 bytes given, 24 needed"),
        (pool(25), GOOD_OUT, None, "25 bytes given, 24 needed"),
        (pool(0), GOOD_OUT, None, "0 bytes given"),
        (GOOD_IN, pool(23), None, r"output 0 \(\): 23 bytes given"),
        (pool(24, offset=977), GOOD_OUT, None, r"\[977, 1001\) of a pool of 1000 bytes"),
        (pool(24, offset=-1), GOOD_OUT, None, "of a pool"),
        (pool(-24), GOOD_OUT, None, "of a pool"),
        (pool(24, offset=2**64 - 8), GOOD_OUT, None, "of a pool"),
        (pool(24, padding=977), GOOD_OUT, None, "of a pool"),
        (pool(24, padding=-1), GOOD_OUT, None, "of a pool"),
        (hal.PoolArgument(DataLocation(1, 0, 24)), GOOD_OUT, None, "pool 1 of 1"),
        (hal.PoolArgument(DataLocation(-1, 0, 24)), GOOD_OUT, None, "pool -1 of 1"),
        (pool(24, 3, 2), GOOD_OUT, None, r"shape \(3, 2\) given, \(2, 3\) needed"),
        (pool(24, 2, 3, 1), GOOD_OUT, None, "needed"),
        (pool(24, 2, -3), GOOD_OUT, None, "negative dimension"),
        (pool(24), GOOD_OUT, UNKNOWN, "must be complete"),
        (pool(24), GOOD_OUT, NO_RANK, "must be complete"),
        (pool(60, 5, 4), GOOD_OUT, UNKNOWN, "needed"),
        (pool(60, 2**62, 3), GOOD_OUT, UNKNOWN, "needed"),
        (pool(60, -1, 3), GOOD_OUT, UNKNOWN, "negative dimension"),
        (pool(20, -5, -1), GOOD_OUT, NO_RANK, "negative dimension"),
        (host(3, 2), GOOD_OUT, None, r"shape \(3, 2\) given"),
        (host(6), GOOD_OUT, None, "needed"),
        (host(2, 3, dtype=np.float64), GOOD_OUT, None, "dtype float64 given, float32 needed"),
        (host(2, 3, dtype=np.dtype(">f4")), GOOD_OUT, None, "dtype"),
        (strided(), GOOD_OUT, None, "C-contiguous"),
        (GOOD_IN, strided(), None, "C-contiguous"),
        (GOOD_IN, frozen(2, 3), None, "must be writeable"),
        (GOOD_IN, flat(24), None, "dtype uint8 given"),
        (flat(24), GOOD_OUT, UNKNOWN, "dtype uint8 given"),
        (pool(2), pool(3), INT4, "2 bytes given, 3 needed"),
        (host(2, dtype=object), flat(9), STRINGS, "flat uint8"),
        (words(9, 2), host(2, dtype=object), STRINGS, "flat uint8"),
        (flat(9), flat(9), STRINGS, "strings need their dimensions"),
        (words(9, 3), flat(9), STRINGS, r"shape \(3,\) given"),
        (pool(9), pool(9), MANY_STRINGS, "must be complete"),
        (hal.NO_VALUE_ARGUMENT, GOOD_OUT, None, "it is omitted, but not optional"),
        (hal.TokenArgument(0), GOOD_OUT, None, "token 0 is not positive"),
        (GOOD_IN, hal.TokenArgument(-5), None, "token -5"),
        ("text", GOOD_OUT, None, r"input 0 \(x\): str is not a request argument"),
        (GOOD_IN, None, None, r"output 0 \(.*\): NoneType is not"),
    ],
)
def test_invalid_request_is_refused_with_its_fault(
    given: Any, wanted: Any, of: Model | None, complaint: str
) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        check(given, wanted, of)


@pytest.mark.parametrize(
    "request_",
    [
        hal.Request((), (GOOD_OUT,), (POOL,)),
        hal.Request((GOOD_IN,), (), (POOL,)),
        hal.Request((GOOD_IN, GOOD_IN), (GOOD_OUT,), (POOL,)),
        hal.Request((GOOD_IN,), (GOOD_OUT, GOOD_OUT), (POOL,)),
    ],
)
def test_counts_must_be_the_model_s(request_: hal.Request) -> None:
    with pytest.raises(InvalidArgument, match="the model has 1 and 1"):
        hal.validate_request(model(), request_, CONFIG)


@pytest.mark.parametrize("kind", ["pool", "host", "mixed"])
@pytest.mark.parametrize("case", every_case(), ids=lambda c: c.name)
def test_every_mutation_of_a_valid_request_is_refused(case: Any, kind: Kind) -> None:
    with Trial(case, kind) as trial:
        hal.validate_request(case.model, trial.request, CONFIG)
        mutations = dict(request_mutations(trial))
        assert mutations
        accepted = {name for name, mutated in mutations.items() if is_valid(case.model, mutated)}
        assert accepted == set()


def is_valid(of: Model, request: hal.Request) -> bool:
    try:
        hal.validate_request(of, request, CONFIG)
    except InvalidArgument:
        return False
    return True


integers = st.integers(-(2**65), 2**65)
arguments = st.one_of(
    st.builds(
        hal.PoolArgument,
        st.builds(DataLocation, integers, integers, integers),
        st.lists(integers, max_size=3).map(tuple),
        integers,
    ),
    st.builds(
        lambda offset, padding: pool(24, offset=offset, padding=padding),
        st.integers(-1, 1001),
        st.integers(-1, 1001),
    ),
    st.builds(hal.TokenArgument, integers),
    st.just(hal.NO_VALUE_ARGUMENT),
    st.builds(host, st.integers(0, 3), st.integers(0, 3)),
)


@given(arguments, arguments, st.sampled_from([model(), UNKNOWN, NO_RANK, INT4, STRINGS]))
def test_any_request_is_valid_or_an_invalid_argument(
    given_: hal.RequestArgument, wanted: hal.RequestArgument, of: Model
) -> None:
    try:
        check(given_, wanted, of)
    except InvalidArgument:
        return
    for argument in (given_, wanted):
        if isinstance(argument, hal.PoolArgument):
            at = argument.location
            assert at.pool == 0
            assert 0 <= at.offset <= at.offset + at.length + argument.padding <= POOL.size


def test_a_deadline_in_the_past_is_missed() -> None:
    past = hal.ExecutionConfig(deadline_ns=time.monotonic_ns() - 1)
    far = hal.ExecutionConfig(deadline_ns=time.monotonic_ns() + 10**12)
    request = hal.Request((GOOD_IN,), (GOOD_OUT,), (POOL,))
    hal.validate_request(model(), request, far)
    with pytest.raises(MissedDeadlinePersistent):
        hal.validate_request(model(), request, past)
    with pytest.raises(MissedDeadlinePersistent):
        hal.check_deadline(0)
    with pytest.raises(MissedDeadlinePersistent, match="passed while the model was compiled"):
        hal.check_deadline(0, "the model was compiled")
    hal.check_deadline(None)


class TestPrepare:
    @pytest.mark.parametrize("preference", hal.PREFERENCES)
    @pytest.mark.parametrize("priority", hal.PRIORITIES)
    def test_every_preference_and_priority_is_valid(self, preference: Any, priority: Any) -> None:
        with does_not_raise():
            hal.validate_prepare(
                model(), hal.PrepareConfig(preference=preference, priority=priority)
            )

    @pytest.mark.parametrize(
        ("fields", "complaint"),
        [
            ({"preference": "x"}, "preference 'x' is not one of low_power"),
            ({"priority": 3}, "priority 3 is not one of"),
            ({"accuracy": ""}, "accuracy '' is not one of"),
            ({"token": b"short"}, "token has 5 bytes, not 32"),
            ({"binding": bytes(33)}, "binding has 33 bytes"),
            ({"num_threads": 0}, "num_threads is 0; at least 1"),
        ],
    )
    def test_every_other_value_is_named(self, fields: dict[str, Any], complaint: str) -> None:
        with pytest.raises(InvalidArgument, match=complaint):
            hal.validate_prepare_config(msgspec.structs.replace(hal.PrepareConfig(), **fields))

    def test_a_missed_deadline(self) -> None:
        with pytest.raises(MissedDeadlinePersistent):
            hal.validate_prepare(model(), hal.PrepareConfig(deadline_ns=1))

    @pytest.mark.parametrize("thing", [None, "model", b"", 3])
    def test_only_a_model_is_a_model(self, thing: Any) -> None:
        with pytest.raises(InvalidArgument, match="a Model is needed"):
            hal.validate_prepare(thing, hal.PrepareConfig())


def test_fenced_execution_needs_known_shapes() -> None:
    validate_fenced(model())
    for unknown in (UNKNOWN, NO_RANK):
        with pytest.raises(InvalidArgument, match="unknown shape"):
            validate_fenced(unknown)


def test_the_first_operation_that_a_device_refuses_is_named_with_the_reason() -> None:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (2,), "x")
    (y,) = builder.operation("RELU", [x], [(DType.FLOAT32, (2,))])
    chain = builder.build(builder.operation("NEG", [y], [(DType.FLOAT32, (2,))]))
    hal.validate_support(chain, [hal.Support(True), hal.Support(True)])
    with pytest.raises(GeneralFailure, match=r"^operation 1 \(NEG\): no NEG here"):
        hal.validate_support(chain, [hal.Support(True), hal.Support(False, "no NEG here")])
    with pytest.raises(GeneralFailure, match=r"^operation 0 \(RELU\): first"):
        hal.validate_support(chain, [hal.Support(False, "first"), hal.Support(False, "second")])


def test_a_yes_whose_accuracy_is_no_class_is_a_named_error() -> None:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (2,), "x")
    model = builder.build(builder.operation("NEG", [x], [(DType.FLOAT32, (2,))]))
    wrong: Any = "NEG is reserved"
    answer = hal.Support(True, "", wrong)
    with pytest.raises(
        GeneralFailure, match=r"^operation 0 \(NEG\): its accuracy 'NEG is reserved'"
    ):
        hal.validate_support(model, [answer])
    with pytest.raises(GeneralFailure, match="malformed: its accuracy 'NEG is reserved' is not"):
        least_class([hal.Support(True), answer])
    assert least_class([hal.Support(True), hal.Support(True, "", "relaxed")]) == "relaxed"
    assert least_class([]) == "faithful"
