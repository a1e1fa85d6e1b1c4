"""Pictures of a plan: the graph of its operations, coloured by device."""
