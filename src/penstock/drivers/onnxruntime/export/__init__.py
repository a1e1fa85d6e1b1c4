"""ONNX models of partitions: what can be written (`support`), the graph (`graph`, `rules`) and its
bytes (`wire`).
"""
