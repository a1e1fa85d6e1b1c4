"""Penstock inside engines that spread data over many machines."""
