"""Your own images, end to end: folders of PNGs at a hub and at clients, a run, labels for new images.

The pictures here are scikit-learn's digits, so that nothing has to be downloaded; with your own, skip `write_folders`.
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

import fedglean


def write_folders(root: Path, labelled: int = 3, clients: int = 8) -> None:
    """hub/CLASS/*.png with labels, clients/NAME/*.png without any, test/CLASS/*.png to judge by."""
    digits = load_digits()
    pixels, seen = (digits.images * 255 / 16).astype(np.uint8), [0] * 10
    for number, (image, kind) in enumerate(zip(pixels, digits.target, strict=True)):
        seen[kind] += 1
        if seen[kind] <= labelled:
            place = root / "hub" / str(kind)
        elif number % 5 == 0:
            place = root / "test" / str(kind)
        else:
            place = root / "clients" / f"branch-{number % clients}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{number:04}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--images", type=Path, default=Path("images"), help="where the folders are, or are written"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/own-images"), help="the run folder")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    if not options.images.exists():
        write_folders(options.images)

    result = fedglean.run(
        "semifl",
        data="folder",
        data_root=options.images,
        rounds=options.rounds,
        executor="stack",
        out=options.out,
    )
    print(f"test accuracy: {result.last.accuracy:.1%} in the last round")

    branch = sorted((options.images / "clients").iterdir())[0]
    for each in fedglean.predict(options.out, sorted(branch.glob("*.png"))[:5]):
        print(f"{each.path.name}: {each.label} ({each.probability:.0%})")


if __name__ == "__main__":
    main()
