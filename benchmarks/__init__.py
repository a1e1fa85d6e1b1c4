"""Benchmarks: `python -m benchmarks [--quick] [--json F]`.

Subjects that are compared run alternately, in the same session.
"""
