"""The forms a plan is read in: text, JSON, Graphviz, SVG."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace

from penstock.errors import Refusal, RefusalCode
from penstock.hal import AccuracyClass
from penstock.ir import Model
from penstock.partitioning import ExecutionPlan, Policy, place
from penstock.partitioning.drawing import lay_out
from penstock.partitioning.placements import Alternative
from penstock.partitioning.plan import Control, describe_prediction
from penstock.partitioning.show import WIDTH, groups_of, ranges
from tests.support_devices import NumpyDevice
from tests.unit.partitioning.models import Net, chain

NNAPI = Policy(placement="nnapi")
SVG = "{http://www.w3.org/2000/svg}"


def adder_and_rest() -> list[NumpyDevice]:
    return [NumpyDevice("adder", {"ADD"}, {"float32": (0.5, 0.5)}), NumpyDevice("reference")]


def planned(model: Model) -> ExecutionPlan:
    return place(model, adder_and_rest(), NNAPI)


def with_reasons(plan: ExecutionPlan, *reasons: str) -> ExecutionPlan:
    """*plan* with these reasons against "other", one an operation."""
    operations = tuple(
        replace(placement, refusals={"other": Refusal(RefusalCode.OTHER, reason)})
        for placement, reason in zip(plan.operations, reasons, strict=True)
    )
    return replace(plan, operations=operations)


def branching() -> Model:
    """x is added to itself; the sum goes two ways that meet again after one and three
    operations.
    """
    net = Net()
    x = net.source("x")
    total = net.add("total", x, x)
    short = net.relu("short", total)
    long = net.relu("c", net.relu("b", net.relu("a", total)))
    return net.build([net.add("both", short, long)])


class TestTheAccuracyClass:
    @pytest.mark.parametrize("accuracy", ["exact", "faithful"])
    def test_is_not_counted_where_nothing_lies_below_the_default(
        self, accuracy: AccuracyClass
    ) -> None:
        devices = [NumpyDevice("reference", accuracy="exact")]
        plan = place(chain(["ADD"]), devices, Policy(accuracy=accuracy))
        assert "accuracy:" not in plan.show()
        assert ("exact" in plan.summary()) == (accuracy == "exact")

    def test_summary_counts_operations_that_the_default_class_would_move(self) -> None:
        quick = NumpyDevice("quick", {"ADD"}, {"float32": (0.1, 0.1)}, accuracy="stepwise")
        devices = [quick, NumpyDevice("reference", accuracy="exact")]
        plan = place(chain(["ADD", "RELU", "ADD"]), devices, Policy(accuracy="relaxed"))
        assert plan.summary().startswith("3 steps, 3 operations (quick 2, reference 1), relaxed")
        told = "accuracy: relaxed is allowed; of 3 operations, their devices declare 2 stepwise"
        assert told in " ".join(plan.show().split())

    def test_says_so_where_the_default_is_kept_all_the_same(self) -> None:
        plan = place(chain(["ADD"]), [NumpyDevice("reference")], Policy(accuracy="stepwise"))
        told = "stepwise is allowed; each device declares at least faithful for its operations"
        assert told in " ".join(plan.show().split())


class TestText:
    def test_is_readable(self) -> None:
        plan = replace(planned(chain(["ADD", "RELU", "RELU", "ADD"])), predicted_ns=None)
        plan = replace(plan, steps=tuple(replace(s, predicted_ns=None) for s in plan.steps))
        assert plan.show() == (
            "plan: 3 steps, 4 operations (adder 2, reference 2), 128 bytes between steps\n"
            "  step  device     operations    in  out  else on\n"
            "  0     adder      0: ADD        1   1    reference\n"
            "  1     reference  1-2: RELU x2  1   1\n"
            "  2     adder      3: ADD        1   1    reference\n"
            "operations:\n"
            "  0, 3: ADD x2 on adder\n"
            "    not on reference: execution time 1, on adder 0.5\n"
            "  1-2: RELU x2 on reference\n"
            "    not on adder: adder has no RELU\n"
        )

    def test_shown_plan_has_predictions_if_any(self) -> None:
        plan = planned(chain(["ADD", "RELU"]))
        steps = tuple(replace(s, predicted_ns=1500) for s in plan.steps)
        alone = (Alternative("adder", 1, 2, 3000), Alternative("reference", 2, 1, 4_000_000))
        text = replace(plan, steps=steps, predicted_ns=3000, alternatives=alone).show()
        assert (
            "predicted: 3 us a run; first choice alone: adder 3 us with 1 of 2 operations,\n"
            "  reference 4 ms\n"
        ) in text
        assert re.search(r"predicted +else on\n +0 +adder +0: ADD +1 +1 +1.5 us", text)

    def test_a_device_that_takes_nothing_is_not_priced_by_what_others_do(self) -> None:
        alone = (Alternative("npu", 0, 1, 4_000_000), Alternative("reference", 1, 1, 4_000_000))
        plan = replace(planned(chain(["RELU"])), predicted_ns=4_000_000, alternatives=alone)
        assert describe_prediction(plan) == (
            "predicted: 4 ms a run; first choice alone: reference 4 ms; "
            "not npu, which may run none of the operations: reasons below"
        )

    def test_operations_that_differ_in_durations_only_share_a_line(self) -> None:
        plan = with_reasons(
            planned(chain(["ADD", "ADD", "ADD"])),
            "slower: 3 us against 900 ns",
            "slower: 2.5 us against 1 us",
            "slower: 12 us against 1 us",
        )
        (group,) = groups_of(plan.operations)
        assert group.operations == (0, 1, 2)
        assert group.reasons == {"other": "slower: 2.5 to 12 us against 900 ns to 1 us"}

    def test_operations_that_differ_in_anything_else_do_not(self) -> None:
        plan = with_reasons(
            planned(chain(["ADD", "ADD", "ADD"])), "no axis 3", "no axis 4", "no\n axis 3"
        )
        assert [g.operations for g in groups_of(plan.operations)] == [(0, 2), (1,)]

    def test_devices_with_one_reason_share_a_line(self) -> None:
        plan = planned(chain(["ADD"]))
        reasons = {"one": "too hot", "two": "too hot", "three": "too far"}
        refusals = {name: Refusal(RefusalCode.OTHER, why) for name, why in reasons.items()}
        plan = replace(plan, operations=(replace(plan.operations[0], refusals=refusals),))
        assert plan.show().splitlines()[-2:] == [
            "    not on one, two: too hot",
            "    not on three: too far",
        ]

    def test_shown_plan_fits_80_columns(self) -> None:
        names = ["a-device-with-a-name-of-its-own", "another-device-whose-name-is-long"]
        kinds = ("ADD", "RELU") * 40
        devices = [
            NumpyDevice(names[0], {"ADD"}, {"float32": (0.5, 0.5)}),
            NumpyDevice(names[1], {"RELU"}, {"float32": (0.5, 0.5)}),
            NumpyDevice("reference"),
        ]
        text = place(chain(kinds), devices, NNAPI).show()
        assert max(map(len, text.splitlines())) <= WIDTH
        assert len(text.splitlines()) < 3 * len(kinds)

    def test_branches_of_control_flow_are_plans_of_their_own(self) -> None:
        plan, then, other = (planned(chain(kinds)) for kinds in (["ADD"], ["RELU"], ["ADD", "ADD"]))
        control = Control("IF", (then, other))
        plan = replace(plan, steps=(replace(plan.steps[0], control=control),))
        text = plan.show()
        assert "\nthen of IF 0:\n  plan: 1 step, 1 operation (reference 1)\n" in text
        assert "\nelse of IF 0:\n  plan: 1 step, 2 operations (adder 2)\n" in text
        (step,) = json.loads(plan.to_json())["steps"]
        assert [b["operations"][0]["type"] for b in step["control"]["branches"]] == ["RELU", "ADD"]

    def test_a_model_without_operations(self) -> None:
        net = Net()
        text = planned(net.build([net.source("x")])).show()
        assert text.startswith("plan: 0 steps, 0 operations\n")
        assert "outputs that are inputs or constants: 0 (%0 'x')" in text
        assert "operations:" not in text

    def test_ranges(self) -> None:
        assert ranges([5, 0, 1, 3, 2, 9]) == "0-3, 5, 9"


def test_json_holds_everything() -> None:
    plan = planned(chain(["ADD", "RELU"]))
    plan = replace(plan, alternatives=(Alternative("adder", 1, 2, None),))
    content = json.loads(plan.to_json())
    assert content["devices"] == ["adder", "reference"]
    assert content["steps"][0] == {
        "index": 0,
        "device": "adder",
        "operations": [0],
        "inputs": [0],
        "outputs": [1],
        "fallbacks": ["reference"],
        "no_fallback": "",
        "predicted_ns": plan.steps[0].predicted_ns,
        "control": None,
    }
    assert content["operations"][1] == {
        "index": 1,
        "type": "RELU",
        "name": "v1",
        "device": "reference",
        "accuracy": "faithful",
        "reasons": {"adder": "adder has no RELU"},
        "codes": {"adder": "unsupported"},
    }
    assert content["temporaries"] == {
        "nbytes": 64,
        "alignment": 64,
        "offsets": {"1": [0, 24]},
        "dynamic": [],
    }
    assert content["predicted_ns"] == plan.predicted_ns
    assert content["alternatives"][0]["device"] == "adder"
    assert content["tuned"] is None


def odd_names() -> ExecutionPlan:
    net = Net()
    x = net.source('in"put\\<&\x01')
    return planned(net.build([net.relu("y", net.add("a", x, x))]))


class TestDot:
    def test_quotes_what_names_may_hold(self) -> None:
        dot = odd_names().to_dot()
        assert dot.startswith("digraph plan {")
        assert '"input in\\"put\\\\<&\x01"' in dot

    def test_has_a_cluster_a_step_and_names_what_crosses(self) -> None:
        lines = planned(chain(["ADD", "RELU", "RELU"])).to_dot().splitlines()
        assert [line.strip() for line in lines if 'label="step' in line] == [
            'label="step 0 on adder";',
            'label="step 1 on reference";',
        ]
        assert '  op0 -> op1 [label="v0: float32[2, 3]"];' in lines
        assert "  op1 -> op2;" in lines
        assert '  op2 -> out0 [label="v2: float32[2, 3]"];' in lines
        colours = {
            # Every node has one.
            re.search(r'fillcolor="(#\w+)"', line).group(1)  # type: ignore[union-attr]
            for line in lines
            if line.strip().startswith(("op1", "op2")) and "fillcolor" in line
        }
        assert len(colours) == 1


class TestSvg:
    def test_svg_is_valid_for_any_names(self) -> None:
        root = ET.fromstring(odd_names().to_svg())  # our own
        texts = [e.text for e in root.iter(f"{SVG}text")]
        assert 'input in"put\\<&\ufffd' in texts
        assert {"adder", "reference", "0 ADD", "1 RELU"} <= set(texts)

    def test_a_node_an_operation_coloured_by_its_device(self) -> None:
        root = ET.fromstring(planned(branching()).to_svg())  # our own
        colours = {
            group.find(f"{SVG}text").text: group.find(f"{SVG}rect").get("fill")  # type: ignore[union-attr]  # all have both
            for group in root.iter(f"{SVG}g")
        }
        assert colours["0 ADD"] == colours["5 ADD"]
        assert len({colours[f"{i} RELU"] for i in (1, 2, 3, 4)} | {colours["0 ADD"]}) == 2
        titles = [e.text for e in root.iter(f"{SVG}title")]
        assert any("not on adder: adder has no RELU" in str(title) for title in titles)

    def test_is_the_same_each_time(self) -> None:
        assert planned(branching()).to_svg() == planned(branching()).to_svg()


class TestLayout:
    def test_edges_run_down_and_nodes_do_not_overlap(self) -> None:
        widths = {f"n{i}": 20.0 + 7 * (i % 3) for i in range(30)}
        edges = [
            (f"n{a}", f"n{b}") for b in range(30) for a in range(b) if (a * 7 + b * 5) % 11 < 2
        ]
        layout = lay_out(widths, edges, 10.0, 4.0)
        rows: dict[int, list[tuple[float, str]]] = {}
        for key, (x, layer) in layout.places.items():
            assert widths[key] / 2 - 0.01 <= x <= layout.width - widths[key] / 2 + 0.01
            rows.setdefault(layer, []).append((x, key))
        for row in rows.values():
            row.sort()
            for (x, key), (other_x, other) in pairwise(row):
                assert other_x - x >= (widths[key] + widths[other]) / 2 + 10 - 0.01
        for (source, target), route in zip(edges, layout.routes, strict=True):
            first, last = layout.places[source][1], layout.places[target][1]
            assert last > first
            assert len(route) == last - first + 1

    def test_nothing_to_draw(self) -> None:
        assert lay_out({}, [], 1.0, 1.0).width == 0
