"""Render the templates in ``model_repository/`` for a recipe."""
