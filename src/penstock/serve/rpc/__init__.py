"""The protocol over gRPC, by grpcio. Its messages are made of `open_inference.proto`."""
