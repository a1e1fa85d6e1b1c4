"""Lowerings of operators, a family a module."""
