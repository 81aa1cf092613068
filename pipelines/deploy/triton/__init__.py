"""Find and start Triton itself."""
