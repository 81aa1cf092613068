"""Fills the tables and draws the pictures of the documents, so that none can drift from what it shows.

``python -m docs.figures`` rewrites each block between ``<!-- figures:NAME -->`` and ``<!-- /figures -->`` and
each picture under ``docs/pictures``. ``--check`` changes nothing and fails if something would change.
"""
