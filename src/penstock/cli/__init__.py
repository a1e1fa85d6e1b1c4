"""The command line: `penstock` or `python -m penstock`. Typer, rich and Pillow are imported here
alone.
"""
