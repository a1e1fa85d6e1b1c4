"""The built-in drivers. Each could be a separate distribution: no package imports them by name."""
