"""Hypothesis strategies for models and graphs. Hypothesis comes with the extra `test`."""

from __future__ import annotations

from hypothesis import strategies as st

from penstock.hal import Device
from penstock.ir import Model
from penstock.testing.random_models import Dag, RandomModel, random_dag, random_model


def models(
    device: Device | None = None, *, max_operations: int = 12, state: float = 0.2
) -> st.SearchStrategy[RandomModel]:
    """Models of 1 to *max_operations* operations that *device* (None: any) supports, and inputs."""
    return st.randoms(use_true_random=False).map(
        lambda random: random_model(random, device, operations=(1, max_operations), state=state)
    )


def dags(*, max_nodes: int = 16, reads: int = 3) -> st.SearchStrategy[Dag]:
    """Directed acyclic graphs; `random_models.model_of_dag` makes a model of one."""
    return st.randoms(use_true_random=False).map(
        lambda random: random_dag(random, (1, max_nodes), reads)
    )


def support_tables(model: Model, devices: int) -> st.SearchStrategy[tuple[frozenset[int], ...]]:
    """The operations of *model* that each of *devices* devices supports, by index.

    At least one device supports each operation.
    """
    count = len(model.operations)
    one = st.frozensets(st.integers(0, devices - 1), min_size=1)
    return st.tuples(*[one] * count).map(
        lambda owners: tuple(
            frozenset(i for i in range(count) if device in owners[i]) for device in range(devices)
        )
    )
