"""Layers: convolutions, dense layers, matrix products, pooling, resizing, attention."""
