"""NNAPI: its models as values (`description`), and their lowering into the IR (`lowering`)."""
