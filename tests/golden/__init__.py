"""Results of transformers that tests compare with, so that they need neither torch nor transformers.

``python -m tests.golden`` makes the files anew; long tests compute the same and compare.
"""
