"""Element by element: arithmetic, comparison, functions, quantisation, reductions,
normalisations.
"""
