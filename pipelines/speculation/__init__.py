"""The draft-then-verify loop and its rules: numpy and the standard library, no Triton, no engine.

``loop.speculate`` is the loop, ``acceptance`` decides what a verification keeps, ``sampling`` and
``noise`` choose tokens so that the output never depends on the draft, ``statistics`` counts.
"""
