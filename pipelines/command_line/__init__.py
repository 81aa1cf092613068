"""Shared parts of command-line programs: options, prompts, the server they use."""
