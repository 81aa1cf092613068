"""Programs for those who change this repository. No server imports this."""
