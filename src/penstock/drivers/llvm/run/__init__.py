"""How generated code runs: the team of threads, stopped runs, measured runs."""
