"""Compares the speed and the start-up of the checkout with another commit of this repository."""
