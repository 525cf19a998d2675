"""To be imported before torchvision, whose published build loads beside a CPU torch once these
operators are known.
"""

import torch

for name in ("nms", "qnms"):
    torch.library.define(
        f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    )
