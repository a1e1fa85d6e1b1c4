"""Benchmarks: `python -m benchmarks [--quick] [--json F]`. What is compared is run alternately, in
one go.
"""
