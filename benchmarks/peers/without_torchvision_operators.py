"""To be imported before torchvision: its published build does not load beside a CPU torch until these operators are known."""

import torch

for name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
