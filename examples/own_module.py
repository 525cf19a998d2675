"""A torch module of your own: `fedglean run semifl --use own_module.py --model residual-module`."""

from torch import nn
from torch.nn import functional as F

from fedglean import from_module


class Block(nn.Module):
    """Two convolutions beside a shortcut, as in any ResNet."""

    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        y += x
        return self.relu(y)


class Residual(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1)
        self.blocks = nn.Sequential(Block(16), Block(16))
        self.dropout = nn.Dropout(0.1)
        self.fc = nn.Linear(16 * 4 * 4, classes)

    def forward(self, images):
        x = F.max_pool2d(self.blocks(self.stem(images)), 2)
        return self.fc(self.dropout(x.flatten(1)))


# `build(classes)` returns a module: a class will do. With `weights=FILE` it starts from a file, with `train="head"` or
# `train="fc,blocks.1"` only that trains, is sent and stored.
MODELS = {
    "residual-module": from_module(Residual),
    "residual-head": from_module(Residual, train="head", norm="frozen"),
}
