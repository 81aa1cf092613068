"""Mixtures of experts: MLPs of which a router chooses a few for each token."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ExpertSizes:
    """Sizes of the experts of a model.

    Attributes:
        count: Experts of a layer.
        num_chosen: Experts that compute a token.
        intermediate_size: Neurons of an expert.
        normalizes: Whether the probabilities of the chosen ones are divided by their sum.
        shared_size: Neurons of a further expert that computes all tokens; 0 for none.
    """

    count: int
    num_chosen: int
    intermediate_size: int
    normalizes: bool
    shared_size: int = 0

    @property
    def chosen_share(self) -> float:
        """Return the share of the experts' weights that a token alone reads."""
        return self.num_chosen / self.count
