"""Transports of the client: KServe v2 over gRPC, Triton's generate endpoints over HTTP."""
