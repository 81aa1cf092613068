"""Pictures of README and the site; charts are drawn from result files."""
