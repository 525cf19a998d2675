"""What `fedglean deploy` starts: Flower's own commands, each printed before it runs.

Telemetry, update check and the installation of an app's dependencies are off in all of them. A hub
has its Flower files in the run folder under flower/, a branch in its state folder. A hub always
begins with an empty link: the run folder is what it goes on from, and orders that a killed hub left
behind would keep branches busy for nothing. Nodes of before are then strangers to the link; they
end, and their supervisors start them again.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedglean.errors import UNREADABLE, ConfigError, RoundError, StorageError
from fedglean.federation import guarded
from fedglean.federation.guarded import APP, LINK, NODE
from fedglean.federation.processes import (
    Address,
    Show,
    Tools,
    end_tidily,
    free_port,
    need_flower,
    wait_for,
    wait_until_free,
)
from fedglean.federation.table import rendered
from fedglean.federation.watch import Watch
from fedglean.runs.config import Config, read_toml, resolve, to_toml
from fedglean.sealed import is_held, is_released, locked, make_folder, write_whole

#: Seconds within which Flower must have started the hub's app.
START = 300.0
#: Seconds until a node is started again, at first and after many times.
PAUSE, LONGEST_PAUSE = 3.0, 30.0
#: As a file: imported with its package it would hold torch in memory for as long as a node lives.
GUARDED = [sys.executable, "-P", guarded.__file__]


@dataclass(frozen=True)
class HubOptions:
    """`keys` is a folder that `make_hub_keys` made, None for a federation without any protection.

    `admit` are the branches' public keys by their numbers.
    """

    images: Path
    out: Path
    branches: int
    listen: Address
    keys: Path | None
    admit: Mapping[int, Path]
    deadline: float
    grace: float
    gathering: float

    def save(self, path: Path) -> None:
        paths = {"images": str(self.images.resolve()), "out": str(self.out.resolve())}
        keys = None if self.keys is None else str(self.keys.resolve())
        admit = {number: str(each.resolve()) for number, each in self.admit.items()}
        content = {
            **asdict(self),
            **paths,
            "listen": str(self.listen),
            "keys": keys,
            "admit": admit,
        }
        write_whole(path, json.dumps(content, indent=1).encode())

    def command(self, *words: str, out: Path | str) -> str:
        """What starts a hub like this one, for the method or configuration in `words`."""
        times = {
            f"--{name}": f"{getattr(self, name):g}" for name in ("deadline", "grace", "gathering")
        }
        places = {
            "--images": self.images,
            "--branches": self.branches,
            "--out": out,
            "--listen": self.listen,
        }
        options = [str(word) for pair in (places | times).items() for word in pair]
        keys = ["--insecure"] if self.keys is None else ["--keys", str(self.keys)]
        admit = [
            word for number, file in self.admit.items() for word in ("--admit", f"{number}={file}")
        ]
        return shlex.join(["fedglean", "deploy", "hub", *words, *options, *keys, *admit])

    @classmethod
    def of(cls, out: Path) -> "HubOptions | None":
        """Those of a run folder, if the command line started it."""
        return cls.load(_options(out)) if _options(out).exists() else None

    @classmethod
    def load(cls, path: Path) -> "HubOptions":
        try:
            own = json.loads(path.read_bytes())
            places = {
                "images": Path(own["images"]),
                "out": Path(own["out"]),
                "listen": Address.read(own["listen"]),
            }
            keys = None if own["keys"] is None else Path(own["keys"])
            admit = {int(number): Path(each) for number, each in own["admit"].items()}
            return cls(**{**own, **places, "keys": keys, "admit": admit})
        except UNREADABLE as error:
            raise StorageError(
                f"{path} cannot be read ({error}); start the hub with all its options again"
            ) from error


def admitted(texts: Sequence[str], branches: int) -> dict[int, Path]:
    """`NUMBER=FILE`, or files in the order of the branches' numbers; each a branch's own public
    key.
    """
    found: dict[int, Path] = {}
    for place, text in enumerate(texts):
        named = re.fullmatch(r"(\d+)=(.+)", text)
        number, path = (int(named[1]), Path(named[2])) if named else (place, Path(text))
        if number >= branches:
            last = branches - 1
            raise ConfigError(
                f"'--admit {text}' is for branch {number}, but the last of {branches} branches is "
                f"{last}"
            )
        if number in found:
            raise ConfigError(
                f"'--admit {text}' is a second key for branch {number}; give one for each branch"
            )
        found[number] = _there(path)
    keys = [path.read_bytes().split()[:2] for path in found.values()]
    twice = next(
        (path for path, key in zip(found.values(), keys, strict=True) if keys.count(key) > 1), None
    )
    if twice is not None:
        raise ConfigError(
            f"{twice} is given for two branches; make a key for each with 'fedglean deploy keys'"
        )
    return found


def resume_hub(out: Path, show: Show) -> int:
    """Start the hub as it was started before; a run that is finished needs none."""
    if (out / "model.safetensors").exists():
        show(f"{out} is already finished")
        return 0
    options = HubOptions.of(out)
    if options is None:
        raise StorageError(f"{out} does not say how its hub was started; start it with all options")
    layer = read_toml(out / "flower" / "hub.toml")
    return run_hub(resolve(layer.get("method"), layer), replace(options, out=out), show)


def _options(out: Path) -> Path:
    return out / "flower" / "options.json"


def run_hub(config: Config, options: HubOptions, show: Show) -> int:
    """Start a SuperLink, let the branches in, start the run, follow it to its end; the run's exit
    code.
    """
    need_flower()
    from fedglean.federation.hub import hosted, known

    known(options.out, hosted(config, options.images), options.branches)
    work = options.out.resolve() / "flower"
    make_folder(work)
    with locked(work / "lock", options.out):
        return _run_hub(config, options, work, show)


def _run_hub(config: Config, options: HubOptions, work: Path, show: Show) -> int:
    end_tidily()
    wait_until_free(options.listen.near)
    _end_the_app_before(work / "journal.jsonl", show)
    home, link_state = work / "home", work / "link"
    shutil.rmtree(link_state, ignore_errors=True)
    for folder in (home, work / "app", link_state):
        make_folder(folder)
    write_whole(work / "app" / "pyproject.toml", APP.encode())
    write_whole(work / "hub.toml", to_toml(config).encode())
    write_whole(work / "hub.json", json.dumps(_hosting(options, work / "hub.toml")).encode())
    write_whole(work / "journal.jsonl", b"")
    options.save(_options(options.out))
    write_whole(home / "config.toml", _connection(options).encode())
    flower = Tools(home, show)
    if options.keys is None:
        show(
            f"no protection: anyone who can reach {options.listen} can read all that is sent, and "
            "take part"
        )
    with flower.started(
        superlink_command(options, link_state / "state.db"), work / "superlink.log"
    ) as link:
        wait_for(options.listen.near, link)
        with ThreadPoolExecutor(4) as pool:  # each is a process that takes seconds to say a word
            list(
                pool.map(
                    lambda public: _register(flower, public),
                    options.admit.values() if options.keys else (),
                )
            )
        flower.run(
            [
                "flwr",
                "run",
                str(work / "app"),
                "hub",
                "--run-config",
                f"hub={json.dumps(str(work / 'hub.json'))}",
            ]
        )
        return follow(work / "journal.jsonl", link, show)


def superlink_command(options: HubOptions, database: Path) -> list[str]:
    command = [*GUARDED, LINK, "--host", options.listen.host, "--port", str(options.listen.port)]
    command += ["--database", str(database), "--disable-runtime-dependency-installation"]
    if options.keys is None:
        return [*command, "--insecure"]
    files = {"ca-certfile": "ca.crt", "certfile": "server.pem", "keyfile": "server.key"}
    for option, name in files.items():
        command += [f"--ssl-{option}", str(_there(options.keys / name))]
    return [*command, "--enable-supernode-auth"]


def supernode_command(
    number: int,
    name: str,
    images: Path,
    state: Path,
    hub: Address,
    authority: Path | None,
    key: Path | None,
    device: str = "cpu",
    use: Path | None = None,
) -> list[str]:
    places = {"images": str(images.resolve()), "state": str(state.resolve())}
    own = {"number": number, "name": name, **places, "device": device} | (
        {"use": str(use.resolve())} if use else {}
    )
    for value in map(str, own.values()):
        if not value.isprintable() or set(value) & set('"\\'):
            raise ConfigError(
                f"{value!r} holds a quote, a backslash or a control character, which Flower cannot "
                "pass on; rename it"
            )
    config = " ".join(
        f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in own.items()
    )
    command = [
        *GUARDED,
        NODE,
        "--superlink",
        str(hub),
        "--host",
        "127.0.0.1",
        "--port",
        str(free_port()),
    ]
    command += ["--node-config", config]
    if authority is None or key is None:
        return [*command, "--insecure"]
    return [
        *command,
        "--root-certificates",
        str(_there(authority)),
        "--auth-supernode-private-key",
        str(_there(key)),
    ]


def run_branch(command: Sequence[str], state: Path, show: Show, give_up: float = 600.0) -> int:
    """A SuperNode, started again whenever it ends: for a minute after a crash Flower refuses a node
    that comes back.
    """
    need_flower()
    end_tidily()
    work = state / "flower"
    make_folder(work)
    with locked(work / "lock", state):
        return _run_branch(command, work, show, give_up)


def _run_branch(command: Sequence[str], work: Path, show: Show, give_up: float) -> int:
    log = work / "node.log"
    write_whole(log, b"")
    flower, failing, pause = Tools(work, show), None, PAUSE
    while True:
        began = time.monotonic()
        with flower.started(command, log) as node, Watch(work, log) as watch:
            end = attended(node, watch, show)
        now = time.monotonic()
        stayed = now - began > 120
        failing, pause = (
            (now, PAUSE) if stayed else (failing or began, min(1.5 * pause, LONGEST_PAUSE))
        )
        if now - failing > give_up:
            show(f"the node has failed to stay connected for {give_up:g} s; giving up")
            return 1
        show(f"{end}; starting it again in {pause:.0f} s")
        time.sleep(pause)


def attended(node: subprocess.Popen[bytes], watch: Watch, show: Show) -> str:
    """Show what a node logs until it ends, or must be ended; why it was."""
    while True:
        code = node.poll()
        for line in watch.lines():
            show(line)
        if code is not None:
            return f"the node ended with status {code}"
        if trouble := watch.trouble():
            return trouble
        time.sleep(0.2)


def _hosting(options: HubOptions, config: Path) -> dict[str, Any]:
    from fedglean.federation.hub import Hosting
    from fedglean.federation.keys import public_key

    keys = {str(number): public_key(path) for number, path in options.admit.items()}
    return asdict(
        Hosting(
            config=str(config.resolve()),
            images=str(options.images.resolve()),
            out=str(options.out.resolve()),
            branches=options.branches,
            deadline=options.deadline,
            grace=options.grace,
            gathering=options.gathering,
            keys=None if options.keys is None else keys,
        )
    )


def _connection(options: HubOptions) -> str:
    """For `flwr run`, which goes to the SuperLink as anybody else would."""
    text = f'[superlink]\ndefault = "hub"\n\n[superlink.hub]\naddress = "{options.listen.near}"\n'
    if options.keys is None:
        return text + "insecure = true\n"
    return text + f"root-certificates = {json.dumps(str((options.keys / 'ca.crt').resolve()))}\n"


def _register(flower: Tools, public: Path) -> None:
    try:
        flower.run(["flwr", "supernode", "register", str(_there(public)), "hub"])
    except StorageError as error:
        if "already" not in str(error):
            raise


def follow(journal: Path, link: subprocess.Popen[bytes], show: Show) -> int:
    """Show what the run tells, and its rounds as a table, until it tells its exit code or is seen
    to be dead.
    """
    begun, latest, log = False, time.monotonic() + START, journal.with_name("superlink.log")
    width, heading = shutil.get_terminal_size().columns if sys.stdout.isatty() else 160, True
    with open(journal, encoding="utf-8") as file:
        text = ""
        while True:
            working = is_held(file)  # before the last words are read
            text += file.read()
            *whole, text = text.split("\n")
            for line in map(json.loads, whole):
                if "app" in line:
                    continue
                show(rendered(line["row"], width, heading) if "row" in line else line["told"])
                heading = heading and "row" not in line
                if "code" in line:
                    return int(line["code"])
            if link.poll() is not None:
                raise RoundError(
                    f"the SuperLink ended with status {link.returncode}; see its log {log}"
                )
            begun = begun or working
            if begun and not working:
                raise RoundError(
                    "the hub's app was killed, perhaps because memory ran out; the same command "
                    "continues the run"
                )
            if not begun and time.monotonic() > latest:
                raise RoundError(
                    f"the hub's app did not start within {START:g} s; see the log {log}"
                )
            time.sleep(0.2)


def _end_the_app_before(journal: Path, show: Show, seconds: float = 30) -> None:
    """The app of a hub that was killed may outlive it for as long as no link answers it; nobody
    needs it any more.
    """
    if not journal.exists():
        return
    with open(journal, "rb") as file:
        if is_released(file, 0):
            return
        show("the app of an earlier hub is still running; ending it")
        number = json.loads(file.readline() or b"{}").get("app", 0)
        with suppress(
            OSError
        ):  # whoever holds the journal lives, so the number is still its own, on this machine
            if b"flwr-serverapp" in Path(f"/proc/{number}/cmdline").read_bytes():
                os.kill(number, signal.SIGKILL)
        if not is_released(file, seconds):
            raise RoundError(
                f"the app of an earlier hub still runs after {seconds:g} s; end its process "
                "flwr-serverapp by hand"
            )


def _there(path: Path) -> Path:
    if not path.is_file():
        raise ConfigError(f"there is no {path}; 'fedglean deploy keys' makes keys and certificates")
    return path.resolve()
