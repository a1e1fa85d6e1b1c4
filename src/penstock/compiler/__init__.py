"""The front half of a compiler, without a target: a model becomes kernels over one arena."""
