"""The built-in drivers. Each could be a distribution of its own: nothing imports them by name."""
