"""How nodes are cut into subsets."""

from __future__ import annotations

import itertools

from hypothesis import given, strategies as st

from penstock.delegates.nodes import cut_into_subsets

Graph = tuple[dict[int, set[int]], frozenset[int]]


@st.composite
def graphs(draw: st.DrawFn, most: int = 7) -> Graph:
    count = draw(st.integers(0, most))
    depends = {i: draw(st.sets(st.integers(0, i - 1))) if i else set() for i in range(count)}
    return depends, draw(st.frozensets(st.sampled_from(range(count)))) if count else frozenset()


def fewest(depends: dict[int, set[int]], wanted: frozenset[int]) -> int:
    """The fewest runs of one kind among all orders in which the nodes can run."""
    best = len(depends)
    for order in itertools.permutations(depends):
        place = {n: k for k, n in enumerate(order)}
        if all(place[d] < place[n] for n in depends for d in depends[n]):
            kinds = [n in wanted for n in order]
            best = min(best, len(list(itertools.groupby(kinds))))
    return best


@given(graphs(most=6))
def test_subsets_are_few_and_in_topological_order(graph: Graph) -> None:
    depends, wanted = graph
    found = cut_into_subsets(sorted(depends), wanted, depends)
    done: set[int] = set()
    for subset in found:
        assert subset.nodes
        for node in subset.nodes:
            assert (node in wanted) is subset.delegated
            assert depends[node] <= done
            done.add(node)
    assert done == set(depends)
    assert len(found) == fewest(depends, wanted)


@given(graphs())
def test_without_clustering_the_order_stays_and_without_fusion_each_stands_alone(
    graph: Graph,
) -> None:
    depends, wanted = graph
    plan = sorted(depends)
    kept = cut_into_subsets(plan, wanted, depends, cluster=False)
    assert [n for s in kept for n in s.nodes] == plan
    alone = cut_into_subsets(plan, wanted, depends, fuse=False)
    assert all(len(s.nodes) == 1 for s in alone if s.delegated)
    assert {n for s in alone for n in s.nodes} == set(plan)


def test_subset_of_the_first_node_comes_first_among_equals() -> None:
    depends: dict[int, set[int]] = {0: set(), 1: set()}
    assert [s.nodes for s in cut_into_subsets([0, 1], frozenset({1}), depends)] == [(0,), (1,)]
    assert [s.nodes for s in cut_into_subsets([0, 1], frozenset({0}), depends)] == [(0,), (1,)]
