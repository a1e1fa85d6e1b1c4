"""Converts a model's outputs to an answer in its task's terms. docs/tasks.md has the rules."""

from penstock.cli.answers.base import Answer, Results
from penstock.cli.answers.classification import CHECK, REMEDY, why_undecided
from penstock.cli.answers.tasks import TASKS, answer, may_be_classes, recognise

__all__ = [
    "CHECK",
    "REMEDY",
    "TASKS",
    "Answer",
    "Results",
    "answer",
    "may_be_classes",
    "recognise",
    "why_undecided",
]
