"""Convolutions in the layout that cuDNN computes in.

cuDNN computes in channels_last. Inductor lays a forward convolution's inputs out so, but a backward
one's as they came out of `vmap`, and cuDNN then turns each of them there and its results back: a
fifth of a WRN-28-2's step.
"""

from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

aten, prims = torch.ops.aten, torch.ops.prims
TENSORS = {aten.convolution.default: 2, aten.convolution_backward.default: 3}
#: A forward and a backward convolution reach the same tensor through nodes of their own of these
#: kinds.
PATHS = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.permute.default,
    aten.clone.default,
    prims.convert_element_type.default,
)


class ChannelsLast(CustomGraphPass):
    """Lays out in channels_last, once for all its readers, each tensor a convolution reads."""

    def __call__(self, graph: Graph) -> None:
        laid_out: dict[Any, Node] = {}
        for node in list(graph.nodes):
            for place in range(TENSORS.get(node.target, 0)):
                read = node.args[place]
                if read.meta["val"].dim() != 4:
                    continue
                origin = _origin(read)
                if origin not in laid_out:
                    with graph.inserting_before(node):
                        laid_out[origin] = graph.call_function(
                            aten.clone.default, (read,), {"memory_format": torch.channels_last}
                        )
                    laid_out[origin].meta["val"] = read.meta["val"].clone(
                        memory_format=torch.channels_last
                    )
                node.update_arg(place, laid_out[origin])

    def uuid(self) -> Any:
        """What was compiled is kept, and is good for as long as this file is the same."""
        return get_hash_for_files((__file__,))


def _origin(node: Any) -> Any:
    """The same for two nodes that show the same tensor."""
    if isinstance(node, Node) and node.target in PATHS:
        return (node.target, *[_origin(part) for part in node.args], str(node.kwargs))
    return node if isinstance(node, Node) else str(node)
