"""Measures what kinds of operations cost on the engines of this machine."""
