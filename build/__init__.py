"""The offline half of Draftproof: checkpoint in, quantized engine and rendered repository out."""
