"""Branches, loops and composites: kernels that run subgraphs."""

from __future__ import annotations

import time

import numpy as np

from penstock.drivers.reference.kernel import (
    EXECUTION,
    Inputs,
    Kernel,
    Outputs,
    Site,
    check_interrupts,
    kernel,
    require,
)
from penstock.errors import GeneralFailure, MissedDeadlineTransient
from penstock.ir import NDArray


@kernel("IF")
def if_else(site: Site) -> Kernel:
    """Runs the subgraph that the condition's first element selects, on the other inputs."""
    then = site.subgraphs(site.attributes.integer("then_subgraph_index"))
    otherwise = site.subgraphs(site.attributes.integer("else_subgraph_index"))

    def run(inputs: Inputs) -> Outputs:
        branch = then if _truth(inputs[0]) else otherwise
        return branch(inputs[1:])

    return run


@kernel("WHILE", "STABLEHLO_WHILE")
def while_loop(site: Site) -> Kernel:
    """Runs the body on its own outputs while the condition subgraph returns true.

    After each evaluation of the condition the loop checks its limits. It raises
    `MissedDeadlineTransient` past the execution's loop timeout (NNAPI section 4.5), and stops at
    the execution's deadline or cancellation.
    """
    condition = site.subgraphs(site.attributes.integer("cond_subgraph_index"))
    body = site.subgraphs(site.attributes.integer("body_subgraph_index"))

    def run(inputs: Inputs) -> Outputs:
        config = EXECUTION.get()
        timeout_ns = config.loop_timeout_ns
        limit = None if timeout_ns is None else time.monotonic_ns() + timeout_ns
        values = [v for v in inputs if v is not None]
        while _truth(condition(values)[0]):
            if limit is not None and time.monotonic_ns() >= limit:
                raise MissedDeadlineTransient("a WHILE ran longer than its loop timeout")
            check_interrupts(config)
            values = list(body(values))
        return values

    return run


@kernel("STABLEHLO_CASE")
def case(site: Site) -> Kernel:
    """Runs the subgraph that the index selects; the last one if it is out of range."""
    branches = [site.subgraphs(i) for i in site.attributes.integers("branch_subgraph_indices")]
    require(bool(branches), "STABLEHLO_CASE without branches")

    def run(inputs: Inputs) -> Outputs:
        index = np.asarray(inputs[0])
        if index.size == 0:
            raise GeneralFailure("a branch index has no element")
        chosen = int(index.reshape(-1)[0])
        return branches[chosen if 0 <= chosen < len(branches) else -1](inputs[1:])

    return run


@kernel("CALL")
def call(site: Site) -> Kernel:
    return site.subgraphs(site.attributes.integer("subgraph"))


@kernel("STABLEHLO_COMPOSITE")
def composite(site: Site) -> Kernel:
    """Computes a composite by its decomposition."""
    return site.subgraphs(site.attributes.integer("decomposition_subgraph_index"))


def _truth(value: NDArray | None) -> bool:
    if value is None or value.size == 0:
        raise GeneralFailure("a condition has no element")
    return bool(value.reshape(-1)[0])
