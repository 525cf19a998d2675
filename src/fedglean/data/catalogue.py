"""The published data sets: classes, normalisation, weak views, and where to get them."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fedglean.data.digests import DIGESTS, Digests
from fedglean.data.layouts import LAYOUTS, Layout


@dataclass(frozen=True)
class Published:
    """A published data set; `sizes` are the numbers of training and test images.

    `fetch` says how to get it.
    """

    name: str
    fetch: str
    classes: tuple[str, ...]
    sizes: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool
    layouts: tuple[Layout, ...]
    digests: Digests
    pad: int = 4


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

_MNIST = Published(
    name="mnist",
    fetch="torchvision.datasets.MNIST(root, download=True)",
    classes=_DIGITS,
    sizes=(60_000, 10_000),
    mean=(0.1307,),
    std=(0.3081,),
    flip=False,
    layouts=LAYOUTS["mnist"],
    digests=DIGESTS["mnist"],
)
_FASHION_MNIST = Published(
    name="fashion-mnist",
    fetch="torchvision.datasets.FashionMNIST(root, download=True)",
    classes=tuple(_FASHION.split(",")),
    sizes=(60_000, 10_000),
    mean=(0.2860,),
    std=(0.3530,),
    flip=True,
    layouts=LAYOUTS["fashion-mnist"],
    digests=DIGESTS["fashion-mnist"],
)
_CIFAR_10 = Published(
    name="cifar10",
    fetch="torchvision.datasets.CIFAR10(root, download=True)",
    classes=tuple(_CIFAR10.split()),
    sizes=(50_000, 10_000),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2023, 0.1994, 0.2010),
    flip=True,
    layouts=LAYOUTS["cifar10"],
    digests=DIGESTS["cifar10"],
)
_CIFAR_100 = Published(
    name="cifar100",
    fetch="torchvision.datasets.CIFAR100(root, download=True)",
    classes=tuple(_CIFAR100.split()),
    sizes=(50_000, 10_000),
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    flip=True,
    layouts=LAYOUTS["cifar100"],
    digests=DIGESTS["cifar100"],
)
_SVHN = Published(
    name="svhn",
    fetch="torchvision.datasets.SVHN(root, split, download=True) for the splits 'train' and 'test'",
    classes=_DIGITS,
    sizes=(73_257, 26_032),
    mean=(0.4377, 0.4438, 0.4728),
    std=(0.1980, 0.2010, 0.1970),
    flip=False,
    layouts=LAYOUTS["svhn"],
    digests=DIGESTS["svhn"],
)

PUBLISHED: Mapping[str, Published] = MappingProxyType(
    {known.name: known for known in (_MNIST, _FASHION_MNIST, _CIFAR_10, _CIFAR_100, _SVHN)}
)
