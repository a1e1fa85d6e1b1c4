"""Tables, embeddings, hashes and random numbers."""
