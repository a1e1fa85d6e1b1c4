"""From files on the command line to the arrays a model's inputs want."""

from penstock.cli.feed.arguments import Fed, Wishes, feed
from penstock.cli.feed.normalization import SCHEMES, Normalization, parse_normalization
from penstock.cli.feed.slots import Slot, slots_of

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
