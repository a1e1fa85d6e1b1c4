"""Converts files on the command line to arrays for a model's inputs."""

from penstock.cli.feed.arguments import Fed, FedPicture, Wishes, feed, kind_of, picture_preparation
from penstock.cli.feed.model_inputs import Slot, slots_of
from penstock.cli.feed.normalization import SCHEMES, Normalization, parse_normalization

__all__ = [
    "SCHEMES",
    "Fed",
    "FedPicture",
    "Normalization",
    "Slot",
    "Wishes",
    "feed",
    "kind_of",
    "parse_normalization",
    "picture_preparation",
    "slots_of",
]
