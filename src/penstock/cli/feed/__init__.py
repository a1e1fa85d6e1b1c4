"""Converts files on the command line to arrays for a model's inputs."""

from penstock.cli.feed.arguments import Fed, Wishes, feed
from penstock.cli.feed.model_inputs import Slot, slots_of
from penstock.cli.feed.normalization import SCHEMES, Normalization, parse_normalization

__all__ = [
    "SCHEMES",
    "Fed",
    "Normalization",
    "Slot",
    "Wishes",
    "feed",
    "parse_normalization",
    "slots_of",
]
