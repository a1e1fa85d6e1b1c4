"""What drivers over an engine share: an operation as its rule sees it, the caller's memory as
arrays, and what is installed.
"""
