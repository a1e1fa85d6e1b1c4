"""Devices in other processes, used like local ones: messages, codec, both ends."""
