"""Draws SemiFL's curves on CIFAR-10, 4000 labels, under the published ones: python
docs/results/draw_curve.py
"""

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from fedglean.reproduce.semifl_figures import FIGURE5, ROUNDS
from matplotlib import pyplot as plt

HERE = Path(__file__).parent
SPLITS = {"iid": "clients alike (iid)", "k2": "two classes a client (K=2)"}


def main() -> None:
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for place, (split, title) in enumerate(SPLITS.items()):
        lines = (HERE / f"semifl-cifar10-4000-{split}.jsonl").read_text().splitlines()
        rounds = [line for line in map(json.loads, lines) if "accuracy" in line]
        numbers, accuracy = (
            [line["round"] for line in rounds],
            [100 * line["accuracy"]["model"] for line in rounds],
        )
        axes.plot(numbers, accuracy, lw=1, color=f"C{place}", label=f"fedglean, {title}")
        printed = FIGURE5[f"cifar10-4000-{split}"]
        note = "published (Figure 5, read to a point)" if place == 0 else None
        axes.errorbar(
            ROUNDS, printed, 1, fmt="o", color="0.3", mfc=f"C{place}", ms=5, zorder=3, label=note
        )
    axes.set(xlabel="round", ylabel="test accuracy, %", ylim=(35, 100), xlim=(0, 810))
    axes.set_title("SemiFL, CIFAR-10, 4000 labels")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(HERE / "semifl-cifar10-4000.png", dpi=110)


if __name__ == "__main__":
    main()
