"""Programs that created files of this repository, such as the demonstration pair. No server imports this."""
