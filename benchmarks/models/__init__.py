"""Models of one operation, at sizes that real networks have, generated from fixed seeds."""
