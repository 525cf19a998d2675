"""Models as values, and the papers' networks."""

from fedglean.models.model import Architecture, Model
from fedglean.models.nets import MODELS
from fedglean.models.norm import NORMS

__all__ = ["MODELS", "NORMS", "Architecture", "Model"]
