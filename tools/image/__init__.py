"""The container image of the embedded runtime, made with Debian's tools instead of a container engine."""
