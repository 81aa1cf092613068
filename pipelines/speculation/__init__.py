"""The draft-then-verify loop and its rules: numpy and the standard library, no Triton, no engine.

``loop.speculate`` is the loop. ``Sampler`` turns logits into tokens and verifies draft tokens by the
ratio rule; ``draws`` and ``noise`` hold all its chance. ``acceptance`` and ``statistics`` count.
"""
