"""HASSLE that also tests its two models without their residuals, on the weights of the same round."""

from dataclasses import dataclass

from fedglean.methods.hassle import DUALS, Hassle


@dataclass(frozen=True)
class HassleAlone(Hassle):
    """HASSLE, its two models tested without their residuals as well."""

    def predictors(self, state):
        alone = {f"{name} alone": state.tested[name] for name in DUALS}
        return super().predictors(state) | alone


METHODS = {"hassle-alone": HassleAlone}
