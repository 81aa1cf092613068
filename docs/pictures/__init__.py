"""Pictures of README and the site, drawn as SVG from result files and from the code."""
