"""Answers under each possible normalisation, for `penstock run` if the scheme is unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.cli.failures import UsageError
from penstock.cli.output import percentage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock import CompiledModel
    from penstock.cli.answers import Answer, Results
    from penstock.cli.feed import Fed
    from penstock.cli.output import Output

COMPARABLE: Final = "classification"
"""The task whose answers can be compared between schemes, by their best class."""


class Comparison(Struct, frozen=True):
    """The best classes under each possible scheme, and under the *excluded* ones.

    A class is a row of `Classification.data`: `index`, `label`, `score`. *tops* has the rows of
    each scheme, best first; *doubts* the schemes without a best class, each with the reason. *task*
    is "outputs" if nothing says that the outputs are classes.
    """

    tops: Mapping[str, list[dict[str, Any]]]
    excluded: Mapping[str, str]
    doubts: Mapping[str, str]
    task: str = COMPARABLE

    @property
    def agree(self) -> bool:
        """Whether the outputs are classes, and every possible scheme gives the same best class."""
        return self.task == COMPARABLE and self._same

    @property
    def _same(self) -> bool:
        best = {self.tops[name][0]["index"] for name in self._meant}
        return len(best) == 1 and self.doubts.keys().isdisjoint(self._meant)

    @property
    def _meant(self) -> list[str]:
        """The possible schemes."""
        return [name for name in self.tops if name not in self.excluded]

    def disagreement(self) -> str:
        """The error text if they do not agree."""
        from penstock.cli.answers import CHECK

        names = self._meant
        if all(name in self.doubts for name in names):
            return (
                f"{self.doubts[names[0]]}, however the picture is normalized "
                f"({', '.join(names)}): {CHECK}; --task outputs with --normalize (for instance "
                f"--normalize {names[0]}) shows the outputs as they are"
            )
        if self.task != COMPARABLE:
            return (
                "the file says neither that its output is a score for each class nor how the "
                "picture is normalized: say "
                "--task classification (or name the classes with --labels) if it is"
                + ("" if self._same else ", and choose with --normalize")
                + "; otherwise say --normalize"
            )
        return (
            "the model does not give the same class however the picture is normalized "
            f"({', '.join(names)}), and the file does not say how: say it with --normalize"
        )

    def notes(self, fed: Fed) -> list[str]:
        """Notes on an answer on which the schemes agree."""
        names = self._meant
        text = (
            f"{_because(fed)}; {', '.join(names)} all give this best class, and the scores are "
            f"those of {names[0]} (--normalize chooses)"
        )
        return [text, *_exclusions(self.excluded)]

    def data(self) -> list[dict[str, Any]]:
        """The comparison for `--json`: an object for each scheme."""
        rows = [
            {
                "normalize": name,
                "top": None if name in self.doubts else top,
                "excluded": self.excluded.get(name),
                **({"doubt": self.doubts[name]} if name in self.doubts else {}),
            }
            for name, top in self.tops.items()
        ]
        return rows + [
            {"normalize": name, "top": None, "excluded": reason}
            for name, reason in self.excluded.items()
            if name not in self.tops
        ]

    def show(self, output: Output, fed: Fed) -> None:
        """Prints the schemes side by side, and the JSON object of a command without an answer."""
        notes = [*fed.notes, _because(fed)]
        if self.task != COMPARABLE:
            notes.append(
                "the file does not say what its output is; here it is read as a score for each "
                "class"
            )
        output.notes(notes)
        rows = []
        for name, top in self.tops.items():
            best, remark = top[0], "excluded" if name in self.excluded else ""
            shown = (best["index"], best["label"] or "", percentage(best["score"]), remark)
            if name in self.doubts:
                shown = ("", "", "", "; ".join(filter(None, (remark, self.doubts[name]))))
            rows.append((f"--normalize {name}", *shown))
        output.table(("preparation", "class", "label", "probability", ""), rows)
        output.notes(_exclusions(self.excluded))
        output.json(
            {
                "task": self.task,
                "top": None,
                "preparations": self.data(),
                "inputs": fed.sources,
                "notes": [*notes, *_exclusions(self.excluded)],
                "error": {"type": UsageError.__name__, "message": self.disagreement()},
            }
        )


def refuse_unstated(fed: Fed, task: str, *, may_be_classes: bool) -> None:
    """Raises `UsageError` if no scheme is stated and the answers of *task* cannot be compared.

    *may_be_classes*: the outputs may be class scores, whatever the recognised task.
    """
    if not fed.unstated or task == COMPARABLE or may_be_classes:
        return
    from penstock.cli.feed.normalization import SCHEMES

    names = list(dict.fromkeys([*fed.schemes, *fed.excluded]))
    others = [name for name in SCHEMES if name not in names]
    raise UsageError(
        f"{_because(fed)}, and answers of the task {task} cannot be compared: say it with "
        "--normalize "
        f"({', '.join(names)} are usual; {', '.join(others)} and MEAN,STD are the others)"
    )


def compare(
    compiled: CompiledModel, fed: Fed, results: Results, found: Answer
) -> Comparison | None:
    """The classes under every possible scheme of *fed*; None for a single scheme and a known task.

    *results* and *found* belong to the first scheme. Each further run starts from the model's
    initial state. If the classes differ, the excluded schemes are run as well, for display.
    """
    from penstock.cli.answers import answer, why_undecided

    names = fed.schemes
    if not names or (len(names) == 1 and found.task == COMPARABLE):
        return None
    first = found if found.task == COMPARABLE else answer(results, COMPARABLE)
    tops, doubts = {names[0]: first.data["top"]}, {names[0]: why_undecided(results, COMPARABLE)}

    def add(schemes: Iterable[str]) -> Comparison:
        for name in schemes:
            outputs = compiled.run(fed.arrays_by(name), state=compiled.new_state())
            under = replace(results, arrays=tuple(outputs))
            tops[name] = answer(under, COMPARABLE).data["top"]
            doubts[name] = why_undecided(under, COMPARABLE)
        undecided = {n: why for n, why in doubts.items() if why}
        return Comparison(tops, fed.excluded, undecided, found.task)

    comparison = add(names[1:])
    return comparison if comparison.agree else add(fed.excluded)


def inferred(fed: Fed) -> list[str]:
    """A note for each picture with a single remaining scheme."""
    return [
        f"{p.preparation.because}: normalized as {p.preparation.schemes[0].name}; --normalize says "
        "otherwise"
        for p in fed.unstated
    ]


def _because(fed: Fed) -> str:
    return "; ".join(dict.fromkeys(p.preparation.because for p in fed.unstated))


def _exclusions(excluded: Mapping[str, str]) -> list[str]:
    reasons = dict.fromkeys(excluded.values())
    return [
        f"{', '.join(n for n, why in excluded.items() if why == reason)}: excluded, {reason}"
        for reason in reasons
    ]
