"""What the search for the cheapest arrangement prices along an order, and how it improves what it
found.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.ir import Model
from penstock.partitioning import Policy, arrangement
from penstock.partitioning.arrangement import Proposal, arrange_by_cost
from penstock.partitioning.dynamic import cheapest, is_chain
from penstock.partitioning.prediction import Judge, Prices
from penstock.partitioning.support import SupportTable, collect_support
from tests.support_devices import NumpyDevice
from tests.unit.partitioning.models import Net, chain

A, B = 0, 1
"""Two devices; where it says so the first has memory of its own, and moving costs 1 a byte."""


def table_of(model: Model, only_b: Sequence[str] = ()) -> SupportTable:
    """Both devices take everything, save that those named run on the second alone."""
    a = NumpyDevice("a", lambda _, name: name not in only_b)
    return collect_support(model, [a, NumpyDevice("b")], Policy())


def priced(
    model: Model,
    operations: Sequence[tuple[float, float]],
    nbytes: dict[str, float],
    steps: tuple[float, float] = (0.0, 0.0),
) -> Judge:
    sizes = tuple(nbytes.get(operand.name, 0.0) for operand in model.operands)
    return Judge(model, Prices(tuple(operations), steps, (1.0, 0.0), sizes))


def search(table: SupportTable, judge: Judge) -> list[int] | None:
    return cheapest(table, judge, range(len(table.model.operations)))


class TestWhatIsMoved:
    def test_an_entry_output_that_is_read_inside_too_leaves_once(self) -> None:
        """RELU on a gains 25; x goes in and v comes out, for 10 each, once, though it is an output
        and read by b.
        """
        net = Net()
        v = net.relu("v", net.source("x"))
        model = net.build([v, net.relu("y", v)])
        judge = priced(model, [(0, 25), (99, 0)], {"x": 10, "v": 10})
        assert search(table_of(model), judge) == [A, B]
        assert search(table_of(model), priced(model, [(0, 19), (99, 0)], {"x": 10, "v": 10})) == [
            B, B,
        ]  # fmt: skip

    def test_transfers_count_values_read_elsewhere_and_outputs(self) -> None:
        net = Net()
        v = net.relu("v", net.source("x"))
        model = net.build([net.relu("y", v)])
        gain = {"x": 10.0, "v": 10.0}
        assert search(table_of(model), priced(model, [(0, 21), (99, 0)], gain)) == [A, B]
        assert search(table_of(model), priced(model, [(0, 19), (99, 0)], gain)) == [B, B]

    def test_a_value_comes_back_to_its_device_where_another_ran_between(self) -> None:
        """w on a, e on b, then y on a reads w: two steps of a, between which w leaves and
        enters.
        """
        net = Net()
        x = net.source("x")
        w = net.relu("w", x)
        e = net.relu("e", x)
        model = net.build([net.add("y", w, e)])
        table = table_of(model, only_b=["e"])
        assert search(table, priced(model, [(0, 9), (0, 0), (0, 3)], {"w": 4})) == [A, B, B]
        assert search(table, priced(model, [(0, 9), (0, 0), (0, 5)], {"w": 4})) == [A, B, A]

    def test_a_value_stays_where_one_device_ran_all_between(self) -> None:
        net = Net()
        x = net.source("x")
        w = net.relu("w", x)
        model = net.build([net.add("y", w, net.relu("e", x))])
        judge = priced(model, [(0, 1), (0, 1), (0, 1)], {"w": 4, "e": 4})
        assert search(table_of(model), judge) == [A, A, A]


class TestChains:
    def test_operations_reading_only_their_predecessor_are_a_chain(self) -> None:
        assert is_chain(chain(["RELU", "NEG", "ADD"]))

    def test_input_read_twice_makes_no_chain(self) -> None:
        """It is moved once where both are in one step, which no look at the one before can tell."""
        net = Net()
        x = net.source("x")
        assert not is_chain(net.build([net.add("y", net.relu("v", x), x)]))

    def test_value_read_from_further_back_makes_no_chain(self) -> None:
        net = Net()
        v = net.relu("v", net.source("x"))
        assert not is_chain(net.build([net.add("y", net.relu("w", v), v)]))

    def test_two_inputs_read_once_each_keep_a_chain(self) -> None:
        net = Net()
        v = net.relu("v", net.source("x"))
        assert is_chain(net.build([net.add("y", v, net.source("z"))]))


def improved(judge: Judge, table: SupportTable, assignment: Sequence[int]) -> Proposal:
    start = arrangement._judged(table, judge, assignment)
    return arrangement._improve(table, judge, start)


def diamond() -> Model:
    """v; two branches of it; their sum."""
    net = Net()
    v = net.relu("v", net.source("x"))
    left, right = net.relu("left", v), net.op("NEG", "right", v)
    return net.build([net.add("y", left, right)])


class TestImproving:
    def test_a_partition_that_costs_less_elsewhere_is_moved(self) -> None:
        model = diamond()
        judge = priced(model, [(5, 0), (5, 0), (0, 9), (5, 0)], {}, steps=(10, 10))
        best = improved(judge, table_of(model), [B, B, A, B])
        assert best.assignment == (B, B, B, B)
        assert best.cost == 19

    def test_moves_go_on_until_none_pays(self) -> None:
        """Either branch alone on a costs a step; everything there is best, two moves away."""
        model = diamond()
        judge = priced(model, [(0, 3), (0, 3), (0, 3), (0, 3)], {}, steps=(1, 1))
        assert improved(judge, table_of(model), [A, B, A, B]).assignment == (A, A, A, A)

    @pytest.mark.parametrize("start", [[A, A, A, A], [B, A, A, A]])
    def test_search_makes_no_move_that_costs_more(self, start: list[int]) -> None:
        model = diamond()
        rows = [(0.0, 50.0)] * 4
        rows[0] = (0.0, 50.0) if start[0] == A else (50.0, 0.0)
        judge = priced(model, rows, {}, steps=(10, 10))
        assert improved(judge, table_of(model), start).assignment == tuple(start)

    def test_refused_operation_stays_on_its_device(self) -> None:
        model = diamond()
        judge = priced(model, [(0, 3), (0, 3), (0, 3), (0, 3)], {}, steps=(1, 1))
        found = improved(judge, table_of(model, only_b=["y"]), [B, B, B, B])
        assert found.assignment[3] == B

    def test_tries_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = diamond()
        judge = priced(model, [(5, 0), (5, 0), (0, 9), (5, 0)], {}, steps=(10, 10))
        monkeypatch.setattr(arrangement, "MOST_MOVES", 0)
        assert improved(judge, table_of(model), [B, B, A, B]).assignment == (B, B, A, B)

    def test_search_returns_the_improved_plan(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What dynamic programming and the single devices propose is only where improving
        begins.
        """
        model = diamond()
        table = table_of(model)
        judge = priced(model, [(50, 0), (50, 0), (0, 9), (50, 0)], {}, steps=(10, 10))
        dear = arrangement._judged(table, judge, [B, B, A, B])
        monkeypatch.setattr(arrangement, "_along", lambda *_, **__: dear)
        monkeypatch.setattr(arrangement, "single_device", lambda *_: dear)
        monkeypatch.setattr(arrangement, "_cheapest_alone", lambda *_: [A] * 4)
        assert arrange_by_cost(table, judge, Policy()).assignment == (B, B, B, B)
