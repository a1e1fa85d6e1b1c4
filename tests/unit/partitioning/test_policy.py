"""Parsing and checking of `Policy`."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from penstock.errors import InputError
from penstock.partitioning import Policy


def test_defaults() -> None:
    policy = Policy()
    assert (policy.placement, policy.accuracy, policy.while_compiling) == (
        "cost",
        "faithful",
        "wait",
    )
    assert (dict(policy.require), dict(policy.forbid)) == ({}, {})
    assert (policy.min_coverage, policy.shadow) == (0.0, 0.0)
    assert (policy.max_partitions, policy.min_partition_size) == (None, 1)
    assert policy.allow_fallback is True


@pytest.mark.parametrize(
    "given", ["gpu", ["gpu"], ("gpu",), {"gpu"}, frozenset({"gpu"}), ["gpu", "gpu"]]
)
def test_one_device_or_several(given: Any) -> None:
    assert Policy(require={"ADD": given}) == Policy(require={"ADD": ("gpu",)})
    assert Policy(forbid={"ADD": given}).forbidden(("ADD",), "y") == {"gpu"}


def test_order_of_required_devices_is_kept_and_sets_are_sorted() -> None:
    assert Policy(require={"*": ["b", "a"]}).required(("ADD",), "y") == ("b", "a")
    assert Policy(require={"*": {"b", "a"}}).required(("ADD",), "y") == ("a", "b")


def test_the_most_specific_requirement_counts_and_all_prohibitions() -> None:
    rules = {"y": "one", "ADD": "two", "*": "three"}
    policy = Policy(require=rules, forbid=rules)
    assert policy.required(("ADD",), "y") == ("one",)
    assert policy.required(("ADD",), "z") == ("two",)
    assert policy.required(("RELU",), "z") == ("three",)
    assert Policy().required(("ADD",), "y") is None
    assert policy.forbidden(("ADD",), "y") == {"one", "two", "three"}
    assert policy.forbidden(("RELU",), "z") == {"three"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"placement": "best"},
        {"accuracy": "roughly"},
        {"while_compiling": "later"},
        {"allow_fallback": 1},
        {"min_coverage": 1.5},
        {"min_coverage": -0.1},
        {"min_coverage": float("nan")},
        {"min_coverage": "half"},
        {"min_coverage": True},
        {"max_partitions": 0},
        {"max_partitions": 2.0},
        {"max_partitions": True},
        {"min_partition_size": 0},
        {"min_partition_size": None},
        {"shadow": -1},
        {"shadow": 1.5},
        {"shadow": 2.0},
        {"shadow": True},
        {"shadow": "all"},
        {"require": "gpu"},
        {"require": {"ADD": 3}},
        {"require": {"ADD": []}},
        {"require": {"ADD": [""]}},
        {"require": {"": "gpu"}},
        {"forbid": {3: "gpu"}},
        {"forbid": ["ADD"]},
    ],
)
def test_a_wrong_value_is_named(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(InputError, match=f"^policy {name}"):
        Policy(**wrong)


@pytest.mark.parametrize("shadow", [0, 3, 0.0, 0.25, 1.0])
def test_shadow_is_a_share_or_a_number_of_runs(shadow: float) -> None:
    assert Policy(shadow=shadow).shadow == shadow


def test_a_policy_is_a_value() -> None:
    rules = {"ADD": ["gpu"]}
    policy = Policy(require=rules, min_coverage=0.5, shadow=3)
    rules["ADD"].append("npu")
    assert policy.required(("ADD",), "y") == ("gpu",)
    again = pickle.loads(pickle.dumps(policy))  # noqa: TID251  # recipes hold policies
    assert again == policy
    assert hash(again) == hash(policy)
    with pytest.raises(TypeError):
        policy.require["RELU"] = "npu"  # type: ignore[index]  # that is the point
