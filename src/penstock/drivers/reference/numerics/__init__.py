"""Shared by the operations: fixed-point and real arithmetic, scales, products, parts of large
arrays.
"""
