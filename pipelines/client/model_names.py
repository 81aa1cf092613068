"""Names of the two models that all programs compare, and of the ensemble, which answers as the first."""

SPECULATIVE = "generate"
TARGET_ALONE = "generate_target"
ENSEMBLE = "ensemble"
