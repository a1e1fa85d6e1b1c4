"""No module decides by the words of a reason, an error or a failure: these have codes.

Words are read at doors alone: where they come from another program, which has no code to give.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

SOURCE: Final = Path(__file__).resolve().parents[2] / "src" / "penstock"

SENTENCE: Final = re.compile(
    r"_*(?:\w+_)?(reason|why|message|detail|problem|complaint|sentence|not_saved|cause)"
)
"""Names of a sentence of ours, or of a driver."""

PERHAPS: Final = re.compile(r"_*(?:\w+_)?(words|said|told|note|failure|error|refusal)")
"""Names that may be of a sentence, or of something else."""

ERROR: Final = re.compile(r"_*(?:\w+_)?(error|failure|exc|exception|cause|refusal)")

METHODS: Final = frozenset(
    [
        "startswith",
        "endswith",
        "removeprefix",
        "removesuffix",
        "find",
        "rfind",
        "index",
        "partition",
        "rpartition",
    ]
)
PATTERNS: Final = frozenset(["match", "search", "fullmatch", "findall", "finditer", "sub", "subn"])

DOORS: Final = {
    "cli/failures.py:of_descriptors": "an ImportError of Python has no number",
    "compilation/failing.py:parse_message": "drivers name the operation in words",
    "compilation/failing.py:with_last_crash": "says nothing twice that a driver's process said",
    "compilation/cache_faults.py:fault_in": "drivers name errors of the cache in words",
    "drivers/llvm/backend.py:_message": "LLVM's parser says in words on which line it is plain",
    "drivers/webgpu/engine.py:Gpu._check_lost": "wgpu says in words that a device is lost",
    "partitioning/support.py:_own_refusal": "drivers refuse in words",
    "testing/contract/caching.py:check_cache_reports": "the words of a driver are what is tested",
    "testing/contract/memory_kinds.py:_require_refusal": "as above",
    "testing/contract/support.py:check_refused_models_do_not_prepare": "as above",
}
"""Functions that read the words of another program, and why; everything behind them has a code."""

SHOWN: Final = {
    "capsules/scrubbing.py:Scrubber._scrubbed": "takes out of sentences what is private",
    "partitioning/show.py:_merged": "joins reasons that differ in durations alone, to be printed",
}
"""Functions that change words for who reads them, and decide nothing else."""


class Reader(ast.NodeVisitor):
    """Finds where a module reads sentences to decide."""

    def __init__(self, module: str) -> None:
        self.found: list[tuple[str, str]] = []
        self._place = [module]
        self._sentences: list[set[str]] = [set()]

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._within(node, node.name)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._within(node, node.name)

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]  # noqa: N815  # the same

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(operator, ast.In | ast.NotIn) and self._is_looked_into(left, right):
                self._note(node)
            if isinstance(operator, ast.Eq | ast.NotEq):
                for one, other in ((left, right), (right, left)):
                    if self._is_sentence(one, perhaps=True) and _is_wording(other):
                        self._note(node)
            left = right
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute):
            of = node.func.value
            read = node.func.attr in METHODS and self._is_sentence(of, perhaps=True)
            searched = node.func.attr in PATTERNS and any(
                self._is_sentence(argument, perhaps=True) for argument in node.args
            )
            if read or searched:
                self._note(node)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._bind(node.targets, node.value)
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._bind([node.target], node.value)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._loop(node.target, node.iter)
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self._loop(node.target, node.iter)
        self.generic_visit(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp | ast.ListComp | ast.SetComp) -> None:
        for each in node.generators:
            self.visit(each)
        self.visit(node.elt)

    visit_ListComp = visit_GeneratorExp  # noqa: N815  # as `ast` names it
    visit_SetComp = visit_GeneratorExp  # noqa: N815  # as `ast` names it

    def visit_DictComp(self, node: ast.DictComp) -> None:
        for each in node.generators:
            self.visit(each)
        self.visit(node.key)
        self.visit(node.value)

    def _within(self, node: ast.AST, name: str) -> None:
        self._place.append(name)
        self._sentences.append(set())
        self.generic_visit(node)
        self._sentences.pop()
        self._place.pop()

    def _bind(self, targets: list[ast.expr], value: ast.expr) -> None:
        if self._is_sentence(value):
            self._sentences[-1] |= {t.id for t in targets if isinstance(t, ast.Name)}

    def _loop(self, target: ast.expr, iterable: ast.expr) -> None:
        """What goes over the values of a mapping of reasons is one."""
        if any(
            isinstance(part, ast.Attribute | ast.Name)
            and _name(part).endswith(("reasons", "notes"))
            for part in ast.walk(iterable)
        ):
            last = target.elts[-1] if isinstance(target, ast.Tuple) else target
            if isinstance(last, ast.Name):
                self._sentences[-1].add(last.id)

    def _is_looked_into(self, left: ast.expr, right: ast.expr) -> bool:
        if self._is_sentence(right):
            return True
        return self._is_sentence(right, perhaps=True) and _is_wording(left)

    def _is_sentence(self, node: ast.expr, *, perhaps: bool = False) -> bool:
        match node:
            case ast.Call(func=ast.Name("str" | "repr"), args=[ast.Name() | ast.Attribute() as of]):
                return ERROR.fullmatch(_name(of)) is not None
            case ast.Call(func=ast.Attribute(value=of, attr="lower" | "strip" | "casefold")):
                return self._is_sentence(of, perhaps=perhaps)
            case ast.BoolOp(values=values):
                return any(self._is_sentence(value, perhaps=perhaps) for value in values)
            case ast.Attribute(value=ast.Name(of), attr="where") if ERROR.fullmatch(of):
                return True
            case ast.Name() | ast.Attribute():
                name = _name(node)
                if isinstance(node, ast.Name) and name in self._sentences[-1]:
                    return True
                if SENTENCE.fullmatch(name):
                    return True
                return perhaps and PERHAPS.fullmatch(name) is not None
        return False

    def _note(self, node: ast.expr) -> None:
        self.found.append(
            (":".join((self._place[0], ".".join(self._place[1:]))), ast.unparse(node))
        )


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def _is_wording(node: ast.expr) -> bool:
    """Whether *node* is words written down: a text of some, or a constant by name."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and " " in node.value.strip()
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Name | ast.Attribute)
        and (_name(node).isupper() or _name(node) == "__name__")
    )


def decisions_in(source: str, module: str = "m.py") -> list[tuple[str, str]]:
    """Where *source* reads sentences to decide: place and code."""
    reader = Reader(module)
    reader.visit(ast.parse(source))
    return reader.found


def modules() -> Iterator[tuple[str, str]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE).as_posix(), path.read_text("utf-8")


def test_no_module_decides_by_the_words_of_a_reason_or_an_error() -> None:
    found = [each for name, source in modules() for each in decisions_in(source, name)]
    known = {*DOORS, *SHOWN}
    assert [f"{place}: {code}" for place, code in found if place not in known] == []
    assert known - {place for place, _ in found} == set()


@pytest.mark.parametrize(
    "line",
    [
        'reason.startswith("cannot be asked")',
        "any(r.startswith(FOUND) for r in placement.reasons.values())",
        "[n for n, why_not in error.reasons.items() if why_not.endswith(END)]",
        'step.error.startswith(("DeadObject", "MissedDeadline"))',
        '"no subgraph" in error.message',
        "MissedDeadline.__name__ in info.reason",
        "kind in answer.reason",
        '"too late" in str(error)',
        '"too late" in str(error).lower()',
        "PLACE.search(error.message)",
        "PLACE.sub('', error.where or '')",
        're.match("operation", str(error))',
        "cache.not_saved == TO_BE_WRITTEN",
        'tuned.reason != "there is no other"',
        "FORM.search(words)",
        "outcome.reason.partition(':')",
    ],
)
def test_a_planted_decision_is_found(line: str) -> None:
    assert [place for place, _ in decisions_in(f"def decide(x):\n    return {line}")] == [
        "m.py:decide"
    ]


def test_a_planted_decision_is_found_behind_a_name() -> None:
    source = "class A:\n    def f(self, error):\n        t = str(error)\n        return 'no' in t"
    assert decisions_in(source) == [("m.py:A.f", "'no' in t")]


@pytest.mark.parametrize(
    "line",
    [
        "index in reasons",
        "not reason",
        "refusal.code is RefusalCode.ACCURACY",
        "name.startswith('key')",
        "f.error == said",
        "word in words",
        "isinstance(error, ValueError)",
    ],
)
def test_other_code_is_no_decision_by_words(line: str) -> None:
    assert decisions_in(f"def decide(x):\n    return {line}") == []
