"""Networks that are compiled to engines: weights, quantization and growth."""
