"""The command line, `penstock`. Only this package imports Typer, rich and Pillow."""
