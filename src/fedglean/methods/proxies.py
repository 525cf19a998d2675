"""The pieces of ProxyFL, in which the rows of a model's last layer are proxies of the classes."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedglean.losses import cross_entropy, one_hot
from fedglean.models import Model
from fedglean.models.layers import by_fan_in
from fedglean.randomness import fold_int


def with_projections(model: Model, key: int) -> Model:
    """The model with the maps of features and of proxies, each as large as there are features."""
    weight = model.parameters[model.architecture.head[0]]
    size = weight.shape[1]
    square, flat = (size, size), (size,)
    shapes = {"features.weight": square, "features.bias": flat, "proxies.weight": square}
    parameters = dict(model.parameters)
    for name, shape in shapes.items():
        drawn = by_fan_in(fold_int(key, name), shape, size)
        parameters[f"projection.{name}"] = drawn.to(weight)
    return Model(model.architecture, parameters, model.statistics)


def feature_extractor(model: Model) -> Model:
    """The model up to its last layer, which becomes the identity; running averages stay shared."""
    name, bias = model.architecture.head
    weight = model.parameters[name]
    size = weight.shape[1]
    identity = torch.eye(size, dtype=weight.dtype, device=weight.device)
    last = {name: identity, bias: weight.new_zeros(size)}
    return Model(model.architecture, {**model.parameters, **last}, model.statistics)


def classify(model: Model, features: Tensor) -> Tensor:
    """The last layer alone."""
    weight, bias = model.architecture.head
    return F.linear(features, model.parameters[weight], model.parameters[bias])


def project(model: Model, features: Tensor) -> tuple[Tensor, Tensor]:
    """Features and proxies where they are compared, of length one."""
    of = model.parameters
    mapped = F.linear(features, of["projection.features.weight"], of["projection.features.bias"])
    proxies = F.linear(of[model.architecture.head[0]], of["projection.proxies.weight"])
    return F.normalize(mapped, dim=-1), F.normalize(proxies, dim=-1)


def contrast(
    features: Tensor, proxies: Tensor, probabilities: Tensor, sure: Tensor, prior: Tensor
) -> Tensor:
    """Indecisive-categories proxy learning, a loss an image.

    An image's classes are its likeliest one where it is sure, else all that are likelier than in
    general, weighed by their probabilities. Images without a common class that point the same way
    push each other off.
    """
    best = one_hot(probabilities.argmax(-1), like=probabilities)
    likely = (probabilities > prior).to(probabilities.dtype)
    classes = torch.where(sure[:, None], best, likely)
    weights = torch.where(sure[:, None], best, likely * probabilities)
    attraction = (features * (weights @ proxies)).sum(-1)
    similarity = features @ features.T
    strangers = (classes @ classes.T == 0) & (similarity >= 1e-6)
    repulsion = torch.where(strangers, similarity, torch.full_like(similarity, -torch.inf))
    return torch.cat([attraction[:, None], repulsion], 1).logsumexp(-1) - attraction


def widest_gap(proxies: Tensor) -> Tensor:
    """The adaptive margin: of all distances to the nearest other proxy the largest."""
    distance = torch.cdist(proxies, proxies)
    itself = torch.eye(len(proxies), dtype=torch.bool, device=proxies.device)
    return distance.masked_fill(itself, torch.inf).amin(-1).max()


def proxy_loss(proxies: Tensor, points: Tensor, label: Tensor, margin: Tensor) -> Tensor:
    """Cross-entropy of being nearest to the class's proxy, with a margin on top of its distance."""
    # Exact where they are near.
    distance = torch.cdist(points, proxies, compute_mode="donot_use_mm_for_euclid_dist")
    return cross_entropy(-(distance + margin * one_hot(label, like=distance)), label)
