"""Draws SemiFL's curve on CIFAR-10, 4000 labels, iid, under the published one: python docs/results/draw_curve.py"""

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from fedglean.reproduce.semifl_figures import FIGURE5, ROUNDS

HERE = Path(__file__).parent


def main() -> None:
    rounds = [json.loads(line) for line in (HERE / "semifl-cifar10-4000-iid.jsonl").read_text().splitlines()]
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    numbers = [line["round"] for line in rounds]
    axes.plot(numbers, [100 * line["accuracy"]["model"] for line in rounds], lw=1.2, label="fedglean, test accuracy")
    sure = [100 * line["pseudo"]["confident_share"] for line in rounds]
    axes.plot(numbers, sure, lw=1, color="0.6", label="images with a confident pseudo-label")
    printed = FIGURE5["cifar10-4000-iid"]
    axes.errorbar(ROUNDS, printed, 1, fmt="o", color="C3", ms=4, label="published (Figure 5, read to a point)")
    axes.set(xlabel="round", ylabel="%", ylim=(0, 100), xlim=(0, 810), title="SemiFL, CIFAR-10, 4000 labels, iid")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(HERE / "semifl-cifar10-4000-iid.png", dpi=110)


if __name__ == "__main__":
    main()
