"""From files on the command line to the arrays a model's inputs want."""

from penstock.cli.feed.arguments import Fed, Wishes, feed
from penstock.cli.feed.normalisation import SCHEMES, Normalisation, parse_normalisation

__all__ = ["SCHEMES", "Fed", "Normalisation", "Wishes", "feed", "parse_normalisation"]
