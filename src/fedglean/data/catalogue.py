"""The published data sets: classes, normalisation, weak views, where to get them, and checksums.

A SHA-256 covers the decoded arrays of one part: pixels N x H x W x C, then labels, then positions
in the published split, both as little-endian int64. Of SVHN only the MD5 of each file is known.
First comes torchvision's layout, then what the original sites hand out.
"""

from collections.abc import Mapping
from types import MappingProxyType

from fedglean.data.formats import (
    CIFAR10_BATCHES,
    cifar10_parts,
    cifar100_parts,
    idx_parts,
    svhn_parts,
)
from fedglean.data.published import Layout, Published

_DIGITS = tuple("0123456789")
_FASHION = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100 = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
    butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch
    crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo
    keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain
    mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain
    plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
    skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone
    television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
_IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_PICKLES = tuple(CIFAR10_BATCHES)
_RECORDS = tuple(f"{name}.bin" for name in CIFAR10_BATCHES)
_MATS = ("train_32x32.mat", "test_32x32.mat")

_MNIST = Published(
    name="mnist",
    fetch="torchvision.datasets.MNIST(root, download=True)",
    classes=_DIGITS,
    sizes=(60_000, 10_000),
    mean=(0.1307,),
    std=(0.3081,),
    flip=False,
    layouts=(Layout(("MNIST/raw", "mnist", "."), _IDX, idx_parts),),
    digests={
        "train": "36ff05636c53c89ddd2d7f4539e1717d5c749dd96ea5fb04fa0d58eabd059c29",
        "test": "2867e12bad6113c46b971a89796a9eb5baf9b514d0ffcc3b2095210f4d640014",
    },
)
_FASHION_MNIST = Published(
    name="fashion-mnist",
    fetch="torchvision.datasets.FashionMNIST(root, download=True)",
    classes=tuple(_FASHION.split(",")),
    sizes=(60_000, 10_000),
    mean=(0.2860,),
    std=(0.3530,),
    flip=True,
    layouts=(Layout(("FashionMNIST/raw", "fashion-mnist", "fashion_mnist", "."), _IDX, idx_parts),),
    digests={
        "train": "6d622863ac2c3a6c5b4b3aa3d351ae763d18f6b6131b57cecf9f1f94780b9905",
        "test": "8cfb46765774cf29aaacac5f6ce39b6c59479c0007048315a89e1e739ea9ec1e",
    },
)
_CIFAR_10 = Published(
    name="cifar10",
    fetch="torchvision.datasets.CIFAR10(root, download=True)",
    classes=tuple(_CIFAR10.split()),
    sizes=(50_000, 10_000),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2023, 0.1994, 0.2010),
    flip=True,
    layouts=(
        Layout(("cifar-10-batches-py",), _PICKLES, cifar10_parts),
        Layout((".", "cifar10"), ("cifar-10-python.tar.gz",), cifar10_parts),
        Layout(("cifar-10-batches-bin",), _RECORDS, cifar10_parts),
        Layout((".", "cifar10"), ("cifar-10-binary.tar.gz",), cifar10_parts),
    ),
    digests={
        "train_0": "3fc158974b81bee6f520e3e069e67d5906b88f83307eb05360f02a1600e80226",
        "train_1": "91a82534f06989d9cd492e3eac9466daa8c2459b5aaafefac92d30edf6a8ca1f",
        "train_2": "6a1cb8c60cddf865d224dd11a1ae37e4dc922e81bf74b950bc6c92323b9c4179",
        "train_3": "e984f9172d7b3cce2f7708e978759d016730864194ab5b15fef53d876ec4aef7",
        "train_4": "fbaf44fb3de0d4662ac75241ff1e3633a4038b84a1f89d6e34a10a08deb84ba7",
        "test_0": "7725a4d1489c3bf89326b2fd1f307e1461d6a97b3af409599ae41cbf708b3a41",
    },
)
_CIFAR_100 = Published(
    name="cifar100",
    fetch="torchvision.datasets.CIFAR100(root, download=True)",
    classes=tuple(_CIFAR100.split()),
    sizes=(50_000, 10_000),
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    flip=True,
    layouts=(
        Layout(("cifar-100-python",), ("train", "test"), cifar100_parts),
        Layout((".", "cifar100"), ("cifar-100-python.tar.gz",), cifar100_parts),
        Layout(("cifar-100-binary",), ("train.bin", "test.bin"), cifar100_parts),
        Layout((".", "cifar100"), ("cifar-100-binary.tar.gz",), cifar100_parts),
    ),
    digests={
        "train_0": "b54e3652d2d4b413ceec4e01f1b601055a3c6127a01402e564b1dfb624fc667e",
        "train_1": "3a5ebb14531d8c423e18e6fe0b0144982b550347cabb5a640055826a2fd622ed",
        "train_2": "6d35266db126ab0fa6afc6a3f18fc4d394d219407fcece54e77267ae43ed26e2",
        "train_3": "037e605f2066ad5cdb68afd0d0074e1c7b911c910a6e3c1ae37bdbedee75035f",
        "train_4": "68da737c87ce0e29bce6619d377c1170167e3b87364735e6f8287a21eaa42e87",
        "train_5": "f1405324ffc715fa670ecf459693d8d9c1eee354ce9ce8e078ac8dbb3e156cab",
        "train_6": "a92fa8963df3286ab056ea16228a378505aadb8ef32cc969bbd6a56181f69393",
        "train_7": "2ba5087dfe65604336236b9dc490053bce6793bb5fee7cf4839ff3a653a9a823",
        "train_8": "84fb852577513b32520d62b0d57b646d2618648b2ed9b3a6c8a270e5ffcf51b5",
        "train_9": "ceb62c9e184522040fbc2ba01a96f45a5f0fb91839f4a6bd50475d9fc9b6c4b2",
        "test_0": "fe6953f50a0f5872ac260ced8731c89a96bc77967c929ad517701e41db9fc699",
        "test_1": "ff1652a3c5468085a2a9df30a0c440b423f9b3438fb71f9378b3630a4072e4cb",
    },
)
_SVHN = Published(
    name="svhn",
    fetch="torchvision.datasets.SVHN(root, split, download=True) for the splits 'train' and 'test'",
    classes=_DIGITS,
    sizes=(73_257, 26_032),
    mean=(0.4377, 0.4438, 0.4728),
    std=(0.1980, 0.2010, 0.1970),
    flip=False,
    layouts=(Layout((".", "svhn", "SVHN"), _MATS, svhn_parts),),
    digests={
        "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
        "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
    },
)

PUBLISHED: Mapping[str, Published] = MappingProxyType(
    {known.name: known for known in (_MNIST, _FASHION_MNIST, _CIFAR_10, _CIFAR_100, _SVHN)}
)
