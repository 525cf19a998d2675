"""Blocks of clients as jobs of a Slurm queue, whose nodes see this folder:
`fedglean run semifl --use own_placement.py --placement queue --block 4 --out runs/queue`.

`SUBMIT` is the command that takes a script, by default `sbatch`; `SUBMIT=sh` runs each job at once,
here. What jobs are told and answer lies in files of `QUEUE` (a folder, by default ./queue) as
safetensors and JSON: nothing is pickled.
"""

import os
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import astuple, replace
from pathlib import Path
from tempfile import mkdtemp

from fedglean import tree
from fedglean.doors import BlockResult, Exchange, PlacementKind
from fedglean.errors import ConfigError, RoundError
from fedglean.federation.plan import function_name, function_of
from fedglean.inputs.images import Images, Predictions
from fedglean.method import Ask, Expect
from fedglean.runs.config import make_method, resolve, to_toml
from fedglean.runs.experiment import prepare, settled_for
from fedglean.sealed import pack, unpack, write_whole
from fedglean.uploads import Refusal, Upload

HOURS = 24  # that a job may wait and run


def submit_command():
    return shlex.split(os.environ.get("SUBMIT", "sbatch"))


def check(config):
    """Refuse the run before any work where there is no queue."""
    if shutil.which(submit_command()[0]) is None:
        raise ConfigError(f"there is no {submit_command()[0]} here; name a command in SUBMIT")


class Queue:
    """Blocks as jobs of a Slurm queue: $SUBMIT takes their scripts, they lie in $QUEUE"""

    def __init__(self, clients, config):
        self.clients, self.config = clients, config

    def __enter__(self):
        place = Path(os.environ.get("QUEUE", "queue")).resolve()
        place.mkdir(parents=True, exist_ok=True)
        self.folder = Path(mkdtemp(prefix="run-", dir=place))
        at_the_job = replace(
            self.config, engine=replace(self.config.engine, placement="here", workers=0)
        )
        (self.folder / "config.toml").write_text(to_toml(at_the_job))
        return self

    def __exit__(self, *error):
        return None

    def serve(self, exchange, blocks, states):
        jobs = []
        method = make_method(self.config)
        for number, block in enumerate(blocks):
            job = self.folder / f"{exchange.round}-{exchange.number}-{number}.job"
            write_whole(job, job_bytes(method, exchange, block, states.states))
            script = job.with_suffix(".sh")
            command = shlex.join([sys.executable, __file__, str(job)])
            script.write_text(f"#!/bin/sh\nexec {command}\n")
            taken = subprocess.run([*submit_command(), str(script)], stdout=sys.stderr, check=False)
            if taken.returncode and not job.with_suffix(".answer").exists():
                raise RoundError(f"{shlex.join(submit_command())} did not take {script}")
            jobs.append(job)
        store = self.clients.federation.hub.store
        for job in jobs:
            content = self.answer_to(job)
            yield result_of(tree.to_device(content, store.device), store)

    def answer_to(self, job):
        path, end = job.with_suffix(".answer"), time.monotonic() + 3600 * HOURS
        while not path.exists():  # it is renamed into its place once it is whole
            if time.monotonic() > end:
                raise RoundError(f"the job {job} has not answered in {HOURS} hours")
            time.sleep(0.1)
        content, notes = unpack(path.read_bytes(), path, self.config.names.net)
        if "error" in notes:
            raise RoundError(f"the job {job} failed: {notes['error']}")
        return content


def job_bytes(method, exchange, block, states):
    """What a job is told; the client's function by its name."""
    ask = exchange.ask
    content = {
        "message": dict(ask.message),
        "each": {client: dict(ask.each[client]) for client in block if client in ask.each},
        "expect": {name: [each.tree, each.bound, each.low] for name, each in ask.expect.items()},
        "states": {client: states[client] for client in block if client in states},
    }
    return pack(
        content,
        function=function_name(ask.client, getattr(ask.client, "__self__", method)),
        once=list(ask.once),
        collect=ask.collect,
        purpose=ask.purpose,
        exchange=[exchange.round, exchange.number, exchange.key],
        block=list(block),
    )


def serve_job(job):
    """The job's side: makes the same clients of the run's configuration, and serves one block."""
    config = resolve(None, tomllib.loads((job.parent / "config.toml").read_text("utf-8")))
    content, notes = unpack(job.read_bytes(), job, config.names.net)
    with settled_for(config):
        experiment = prepare(config)
        content = tree.to_device(content, experiment.device)
        ask = Ask(
            function_of(notes["function"], experiment.method),
            to=notes["block"],
            message=content["message"],
            each=content["each"],
            expect={name: Expect(*parts) for name, parts in content["expect"].items()},
            once=notes["once"],
            collect=notes["collect"],
            purpose=notes["purpose"],
        )
        exchange = Exchange(ask, *notes["exchange"])
        with experiment.placement as here:
            return here.clients.serve(exchange, notes["block"], content["states"])


def result_bytes(result):
    content = dict(vars(result))
    content["refused"] = [list(astuple(refusal)) for refusal in result.refused]
    content["uploads"] = {}
    for client, upload in result.uploads.items():
        content["uploads"][client] = [upload.trees, upload.all_weights, upload.report]
    content["guesses"] = []
    for guess in result.guesses:
        content["guesses"].append([guess.images.index, guess.probabilities, guess.threshold])
    return pack(content)


def result_of(content, store):
    uploads = {}
    for client, (trees, weight, report) in content["uploads"].items():
        uploads[client] = Upload.of(trees, weight=weight, report=report)
    guesses = []
    for index, probabilities, threshold in content["guesses"]:
        guesses.append(Predictions(Images(store, index), probabilities, threshold))
    refused = [Refusal(*parts) for parts in content["refused"]]
    return BlockResult(**{**content, "uploads": uploads, "guesses": guesses, "refused": refused})


def main():
    job = Path(sys.argv[1])
    try:
        answer = result_bytes(serve_job(job))
    except Exception as error:
        write_whole(
            job.with_suffix(".answer"), pack(None, error=f"{type(error).__name__}: {error}")
        )
        raise
    write_whole(job.with_suffix(".answer"), answer)


PLACEMENTS = {"queue": PlacementKind(Queue, "as jobs of a Slurm queue", check)}

if __name__ == "__main__":
    main()
