"""Shared arithmetic: fixed-point and real numbers, scales, products, parts of arrays."""
