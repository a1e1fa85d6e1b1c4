"""A device in another process, made indistinguishable from one here: messages, codec, both ends."""
