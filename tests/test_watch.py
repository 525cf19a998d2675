"""`watch` shows runs while they grow, and `tensorboard` gets the same numbers."""

import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedglean.report.watch import Watcher
from shown_runs import Made, Reader, call, lines

MAIN = [sys.executable, "-m", "fedglean"]


@contextmanager
def watching(*folders: Path) -> Iterator[Watcher]:
    with Watcher(folders) as watcher:
        thread = threading.Thread(target=watcher.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield watcher
        finally:
            watcher.shutdown()
            thread.join()


def ask(
    watcher: Watcher, path: str, method: str = "GET", **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", watcher.server_port, timeout=30)
    try:
        connection.request(
            method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read()
    finally:
        connection.close()


def test_watch_serves_the_page_and_its_data_and_nothing_else(made: Made) -> None:
    with watching(made.all / "semifl") as watcher:
        assert watcher.server_address[0] == "127.0.0.1"
        status, headers, body = ask(watcher, "/")
        assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
        assert json.loads(Reader(body.decode()).texts["data"])["live"] is True
        for path in (
            "/config.toml",
            "/seed-0/metrics.jsonl",
            "/../../etc/passwd",
            "//etc/passwd",
            "/%2e%2e/",
            "/data",
        ):
            assert ask(watcher, path)[0] == 404
        for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
            assert ask(watcher, "/", method)[0] == 501
        assert ask(watcher, "/", Host="elsewhere.example")[0] == 403
        assert ask(watcher, "/data.json", Host=f"localhost:{watcher.server_port}")[0] == 200


def test_a_reader_who_leaves_in_mid_page_is_no_error(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    with watching(made.all / "hub-only") as watcher:
        watcher.data["headline"]["more than a socket holds"] = "." * 10**7
        threads = threading.active_count()
        with socket.create_connection(watcher.server_address) as reader:
            reader.sendall(
                f"GET / HTTP/1.0\r\nHost: localhost:{watcher.server_port}\r\n\r\n".encode()
            )
            assert reader.recv(1)
        until(lambda: threading.active_count() == threads)
    assert not capsys.readouterr().err


def test_watch_sends_data_only_when_they_are_new(made: Made, tmp_path: Path) -> None:
    shutil.copytree(made.all / "semifl/seed-0", tmp_path / "run")
    with watching(tmp_path / "run") as watcher:
        status, headers, body = ask(watcher, "/data.json")
        mark = headers["ETag"]
        assert status == 200 and len(json.loads(body)["groups"][0]["runs"][0]["round"]) == 4
        assert ask(watcher, "/data.json", If_None_Match=mark)[::2] == (304, b"")
        last = lines(tmp_path / "run")[-1]
        with (tmp_path / "run/metrics.jsonl").open("a") as file:
            file.write(json.dumps(last) + "\n")
        status, headers, body = ask(watcher, "/data.json", If_None_Match=mark)
        assert status == 200 and len(json.loads(body)["groups"][0]["runs"][0]["round"]) == 5
        assert headers["ETag"] != mark


def test_watch_shows_rounds_while_a_run_goes_on_in_another_process(tmp_path: Path) -> None:
    words = [
        "run",
        "hub-only",
        "--labels",
        "hub:50",
        "--model",
        "mlp",
        "--rounds",
        "40",
        "--quiet",
        "--device",
        "cpu",
    ]
    process = subprocess.Popen(
        [*MAIN, *words, "--executor", "loop", "--out", str(tmp_path / "run")]
    )
    until(lambda: (tmp_path / "run/config.toml").exists())
    counts = [0]
    with watching(tmp_path / "run") as watcher:

        def finished() -> bool:
            (group,) = json.loads(ask(watcher, "/data.json")[2])["groups"]
            counts.append(len(group["runs"][0]["round"]))
            return bool(group["finished"])

        until(finished)
    assert process.wait(60) == 0
    assert counts == sorted(counts) and len(set(counts)) > 3 and counts[-1] == 41


def test_watch_says_where_and_ends_by_an_interrupt(made: Made) -> None:
    command = [*MAIN, "watch", str(made.all)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert re.match(r"watching at http://127\.0\.0\.1:\d+/", process.stdout.readline())
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert (process.returncode, rest, errors) == (0, "stopped watching\n", "")


def until(done: Callable[[], bool], seconds: float = 180) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


def test_a_port_that_is_taken_is_said_in_a_sentence(made: Made) -> None:
    with watching(made.all / "semifl") as watcher:
        result = call("watch", made.all / "semifl", "--port", str(watcher.server_port))
    assert result.exit_code == 2 and f"port {watcher.server_port} cannot be used" in result.stderr


def test_tensorboard_gets_the_numbers_of_the_metrics(made: Made, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):
        assert call("tensorboard", made.all, "--out", tmp_path).exit_code == 0
    for seed in (0, 1):
        place = tmp_path / f"semifl/seed-{seed}"
        events, history = (
            EventAccumulator(str(place)).Reload(),
            lines(made.all / f"semifl/seed-{seed}"),
        )
        assert len(list(place.iterdir())) == 1
        name = made.semifl[0].names[0]
        scalars = events.Scalars(f"accuracy/{name}")
        assert [each.step for each in scalars] == [1, 2, 3, 4]
        assert [each.value for each in scalars] == pytest.approx(
            [line["accuracy"][name] for line in history]
        )
        assert [each.value for each in events.Scalars("bytes_up")] == [
            line["bytes_up"] for line in history
        ]
        assert {"pseudo/confident_share", "phases/clients", "seconds", "refused"} <= set(
            events.Tags()["scalars"]
        )


def test_without_tensorboard_a_sentence_says_what_is_missing(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    result = call("tensorboard", made.all)
    assert result.exit_code == 2 and "fedglean[tensorboard]" in result.stderr


def test_event_files_that_have_no_place_are_a_sentence(made: Made, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "file").write_text("mine")
    result = call("tensorboard", made.all / "hub-only", "--out", tmp_path / "file")
    assert result.exit_code == 4 and "cannot create the folder" in result.stderr
