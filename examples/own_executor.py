"""Where the time goes: `fedglean run semifl --use own_executor.py --executor timed`."""

import sys
import time
from collections import Counter

from fedglean.engine.loop import Loop
from fedglean.engine.task import closing, run_together


class Timed:
    """One client after the other; says after each block how long requests took so far"""

    widest = None

    def __init__(self, setting):
        self.setting, self.loop, self.seconds = setting, Loop(setting), Counter()

    def run(self, parties):
        results = []
        with closing(parties):
            for party in parties:
                results += run_together([party], self.answer_tasks)
        took = [f"{kind} {seconds:.2f} s" for kind, seconds in self.seconds.most_common()]
        print(f"{parties[0].name} and on: {', '.join(took)}", file=sys.stderr)
        return results

    def answer_tasks(self, tasks):
        # An error says whose it is.
        with tasks[0].blamed(others=len(tasks) - 1):
            return self.answer([task.call for task in tasks])

    def answer(self, calls):
        answers = []
        for call in calls:
            begin = time.perf_counter()
            answers += self.loop.answer([call])
            self.seconds[type(call.request).__name__] += time.perf_counter() - begin
        return answers


EXECUTORS = {"timed": Timed}
