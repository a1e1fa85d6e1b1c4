"""Models of one operation at sizes that networks have, drawn from fixed seeds."""
