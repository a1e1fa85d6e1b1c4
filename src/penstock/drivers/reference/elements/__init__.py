"""Elementwise operations, quantisation, reductions and normalisations."""
