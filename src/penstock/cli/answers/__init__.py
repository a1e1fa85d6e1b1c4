"""From a model's outputs to an answer in the words of its task. `docs/tasks.md` has the rules."""

from penstock.cli.answers.base import Answer, Results
from penstock.cli.answers.tasks import TASKS, answer, recognise

__all__ = ["TASKS", "Answer", "Results", "answer", "recognise"]
