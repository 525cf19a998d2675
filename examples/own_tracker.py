"""A table of all rounds: `fedglean run semifl --use own_tracker.py --track csv --out runs/all`."""

import csv


class Table:
    """rounds.csv beside the run, or beside the seeds: a line a model and round"""

    def begin(self, runs):
        if runs.folder is None:
            raise RuntimeError("a run without a folder has no place for a table")
        self.file = (runs.folder / "rounds.csv").open("w", newline="")
        self.table = csv.writer(self.file)
        self.table.writerow(["seed", "round", "model", "accuracy"])
        for run in runs:  # a resumed run has a history
            for line in run.history:
                self.round({run.seed: line})

    def round(self, lines):
        for seed, line in lines.items():
            for model, accuracy in line.get("accuracy", {}).items():
                self.table.writerow([seed, line["round"], model, accuracy])
        self.file.flush()

    def end(self, runs):
        self.file.close()


TRACKERS = {"csv": Table}
