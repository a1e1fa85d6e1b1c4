"""Penstock: one neural network, every accelerator a machine has."""
