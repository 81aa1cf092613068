"""Everything that runs inside or around Triton: its models, and the gateway before it."""
