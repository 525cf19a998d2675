"""The page in a real browser: it draws itself, answers to pointer, tap and keys, and fits screen,
phone and paper.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from threading import Thread
from typing import Any

import pytest

from fedglean.report.examine import ModelReport
from fedglean.report.gather import gather
from fedglean.report.page import page as html_of
from fedglean.report.page import page_data, write_page
from fedglean.report.watch import Watcher
from shown_runs import HOSTILE, Made, hostile_runs, lines, without_checkpoint

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium here: apt-get install chromium"
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@dataclass
class Seen:
    """A page that is open, and what it did that a page should not, or need not."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def tip(self) -> str:
        tip = self.page.locator("#tip")
        return str(tip.inner_text()) if tip.is_visible() else ""

    def hover(self, chart: str, across: float, down: float) -> str:
        """What is told at that share of a chart's width and height."""
        place = self.page.locator(f"{chart} svg")
        place.scroll_into_view_if_needed()
        box = place.bounding_box()
        self.page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
        return self.tip()


Open = Callable[..., AbstractContextManager[Seen]]


@pytest.fixture
def opened(browser: Any) -> Open:
    @contextmanager
    def opened(
        address: str | Path, width: int = 1200, scheme: str = "light", **options: Any
    ) -> Iterator[Seen]:
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, **options
        )
        seen = Seen(context.new_page())
        seen.page.on("console", lambda line: seen.errors.append(line.text))
        seen.page.on("pageerror", lambda error: seen.errors.append(str(error)))
        seen.page.on("dialog", lambda dialog: (seen.errors.append("a dialog"), dialog.dismiss()))
        seen.page.on("request", lambda request: seen.requests.append(request.url))
        seen.page.goto(address.as_uri() if isinstance(address, Path) else address)
        seen.page.wait_for_selector("#curves svg")
        yield seen
        assert not seen.errors
        context.close()

    return opened


@pytest.fixture(scope="module")
def page(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page([made.all], tmp_path_factory.mktemp("page") / "report.html")


def accuracies(made: Made, method: str) -> list[list[float]]:
    """Seeds x rounds, from the metrics."""
    runs = [lines(made.all / method / f"seed-{seed}") for seed in (0, 1)]
    return [[line["accuracy"]["model"] for line in run] for run in runs]


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def test_it_draws_everything_and_asks_for_nothing_but_the_file(page: Path, opened: Open) -> None:
    with opened(page) as seen:
        assert seen.requests == [page.as_uri()]
        for chart in (
            "#curves",
            "#ends",
            ".pseudo",
            "#sent",
            "#time",
            "#holders",
            "#classes",
            "#confusion",
        ):
            assert seen.page.locator(f"{chart} svg").count() == 1
        pictures = seen.page.locator(".examples img")
        assert pictures.count() > 3
        assert pictures.evaluate_all(
            "pictures => pictures.every(each => each.complete && each.naturalWidth === 8)"
        )
        assert "Did the unlabelled clients help?" in seen.page.inner_text(".answer")
        assert 'method = "semifl"' in seen.page.inner_text("#config")
        assert "the best" in seen.page.inner_text("section:has(#ends) tbody")


def test_the_curves_tell_the_metrics_numbers_at_every_round(
    page: Path, made: Made, opened: Open
) -> None:
    semifl, alone = accuracies(made, "semifl"), accuracies(made, "hub-only")
    with opened(page) as seen:
        assert seen.tip() == ""
        first = seen.hover("#curves", 0.01, 0.5)
        assert "round 1" in first
        for name, seeds in (("semifl", semifl), ("hub-only", alone)):
            values = [seed[0] for seed in seeds]
            spread = rf"\({100 * min(values):.1f}.{100 * max(values):.1f}\)"
            assert re.search(rf"{name}\s+{percent(fmean(values))} {spread}", first)
        last = seen.hover("#curves", 0.9, 0.5)
        assert (
            "after the last round" in last and percent(fmean(seed[-1] for seed in semifl)) in last
        )
        seen.page.mouse.move(2, 2)
        assert seen.tip() == ""


def test_every_other_chart_answers_too(page: Path, made: Made, opened: Open) -> None:
    data = json.loads(re.findall(r'id="data">(.*?)</script>', page.read_text(), re.S)[0])
    semifl = next(group for group in data["groups"] if group["label"] == "semifl")
    with opened(page) as seen:
        assert "seed" in seen.hover("#ends", 0.5, 0.5)
        assert "confident" in seen.hover(".pseudo", 0.4, 0.5)
        assert "to the clients" in seen.hover("#sent", 0.05, 0.8)
        along = [seen.hover("#time", share / 20, 0.8) for share in range(1, 20)]
        assert any("clients, gate and sums" in told for told in along)
        assert re.search(r"class \d\s", seen.hover("#classes", 0.5, 0.05))
        corner = seen.hover("#confusion", 0.1, 0.1)
        assert (
            "class 0, recognised" in corner
            and f"images\n{semifl['exam']['confusion'][0][0]}" in corner
        )
        hub = seen.hover("#holders", 0.04, 0.04)
        assert "hub, class 9" in hub and f"labelled\n{semifl['holders']['labelled'][0][9]}" in hub


def test_the_switch_shows_bytes_and_seconds(page: Path, made: Made, opened: Open) -> None:
    runs = [lines(made.all / f"semifl/seed-{seed}") for seed in (0, 1)]
    sent = [sum(line["bytes_down"] + line["bytes_up"] for line in run) for run in runs]
    with opened(page) as seen:
        seen.page.locator("#against-bytes").check()
        for key in ("Tab", *5 * ["ArrowRight"]):
            seen.page.keyboard.press(key)
        told = seen.tip()
        assert "semifl, after the last round" in told and f"{fmean(sent) / 1e6:.1f} MB" in told
        seen.page.locator("#against-seconds").check()
        assert "time so far" in seen.hover("#curves", 0.5, 0.3)


def test_all_of_it_works_by_keys_alone(page: Path, opened: Open) -> None:
    with opened(page) as seen:
        seen.page.locator("#against-round").focus()
        seen.page.keyboard.press("Tab")
        assert seen.page.evaluate("document.activeElement.closest('figure').id") == "curves"
        assert "after the last round" in seen.tip()
        seen.page.keyboard.press("ArrowLeft")
        assert "round 3" in seen.tip()
        seen.page.keyboard.press("Escape")
        assert seen.tip() == ""
        seen.page.locator("#against-round").focus()
        seen.page.keyboard.press("ArrowRight")
        assert seen.page.locator("#against-bytes").is_checked()
        assert "bytes" in seen.page.locator("#curves svg").get_attribute("aria-label")


def test_another_run_can_be_looked_at(page: Path, opened: Open) -> None:
    with opened(page) as seen:
        seen.page.locator("#group").focus()
        seen.page.select_option("#group", label="hub-only")
        assert 'method = "hub-only"' in seen.page.inner_text("#config")
        assert seen.page.evaluate("document.activeElement.id") == "group"


def test_the_closer_look_begins_with_what_the_headline_tells_of(
    made: Made, opened: Open, tmp_path: Path
) -> None:
    data = page_data(gather([made.all]), ModelReport())
    assert [group["label"] for group in data["groups"]] == ["hub-only", "semifl"]
    data["groups"][0]["role"] = "method"
    (tmp_path / "two.html").write_text(html_of(data))
    with opened(tmp_path / "two.html") as seen:
        assert (
            seen.page.locator("#group").evaluate("each => each.selectedOptions[0].text") == "semifl"
        )


def test_no_two_lines_look_alike_also_where_a_legend_names_them(
    made: Made, opened: Open, tmp_path: Path
) -> None:
    data = page_data(gather([made.all]), ModelReport())
    alone, semifl = data["groups"]
    data["groups"] = [semifl, alone | {"label": "second"}, alone]
    data["groups"] += [
        alone | {"label": label, "role": "reference"} for label in ("hub-all", "fedavg-all")
    ]
    (tmp_path / "lines.html").write_text(html_of(data))
    with opened(tmp_path / "lines.html", width=360) as seen:
        looks = "all => all.map(each => getComputedStyle(each).backgroundImage)"
        legend = seen.page.locator("#curves .stroke").evaluate_all(looks)
        lines = (
            "all => all.map(each => each.getAttribute('stroke') + "
            "each.getAttribute('stroke-dasharray'))"
        )
        drawn = seen.page.locator("#curves path[stroke]").evaluate_all(lines)
        assert len(set(legend)) == len(set(drawn)) == len(drawn) == 5


def test_what_is_trained_at_one_site_sends_nothing(
    made: Made, opened: Open, tmp_path: Path
) -> None:
    data = page_data(gather([made.all]), ModelReport())
    data["groups"][1]["federated"] = False
    (tmp_path / "one.html").write_text(html_of(data))
    with opened(tmp_path / "one.html") as seen:
        assert seen.page.inner_text("#sent").count(
            "nothing sent"
        ) == 2 and "answered" not in seen.page.inner_text("#sent")
        seen.page.check("#against-bytes", force=True)
        seen.page.locator("#curves svg").hover(position={"x": 900, "y": 100})
        assert "sends nothing" in seen.page.inner_text("#tip")


def test_dark_is_dark_and_paper_is_not(page: Path, opened: Open) -> None:
    def lightness(seen: Seen) -> float:
        colour = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
        return fmean(map(int, re.findall(r"\d+", colour)[:3]))

    with opened(page) as light, opened(page, scheme="dark") as dark:
        assert lightness(light) > 240 and lightness(dark) < 40
        dark.page.emulate_media(media="print")
        assert lightness(dark) > 240


@pytest.mark.parametrize("width", [320, 360, 768])
def test_no_screen_is_too_narrow(page: Path, opened: Open, width: int) -> None:
    with opened(page, width=width, has_touch=True) as seen:
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        sizes = seen.page.evaluate(
            "[...document.querySelectorAll('svg text')].map(each => "
            "each.getBoundingClientRect().height)"
        )
        assert min(sizes) > 9
        seen.page.locator("#curves svg").tap(position={"x": 150, "y": 100})
        assert "round" in seen.tip()
        box = seen.page.locator("#tip").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width


def test_a_command_is_broken_between_words_and_copied_whole(
    made: Made, opened: Open, tmp_path: Path
) -> None:
    write_page([made.all / "semifl"], tmp_path / "page.html")
    with opened(tmp_path / "page.html", width=360) as seen:
        commands = seen.page.locator(".answer pre")
        run, report = commands.inner_text().splitlines()
        assert run.startswith("fedglean run hub-only ") and " --data digits " in run
        assert report.startswith("fedglean report ")
        lines = (
            "words => words.map(each => [each.textContent, each.getBoundingClientRect().height])"
        )
        tall = dict(seen.page.locator(".answer pre span").evaluate_all(lines))
        assert {tall[word] for word in run.split() if len(word) < 30} == {tall["--seed"]}
        assert commands.bounding_box()["height"] > 4 * tall["--seed"]


def test_the_button_copies_the_command_and_says_so(page: Path, opened: Open) -> None:
    with opened(page, permissions=["clipboard-read", "clipboard-write"]) as seen:
        seen.page.get_by_role("button", name="Copy the command").click()
        seen.page.get_by_role("button", name="Copied").wait_for()
        assert seen.page.evaluate("navigator.clipboard.readText()") == seen.page.inner_text(
            "#command"
        )


def test_every_column_can_be_reached_on_a_phone(page: Path, opened: Open) -> None:
    with opened(page, width=360, has_touch=True) as seen:
        table = seen.page.get_by_role("region", name="Where it ended")
        headings = table.locator("th").all_inner_texts()
        assert headings[1:5] == ["seeds", "last round", "best round", "against the best"]
        assert headings[5:] == ["time per seed", "sent per seed"]
        table.focus()
        for _ in range(40):
            seen.page.keyboard.press("ArrowRight")
        seen.page.wait_for_timeout(300)
        last, first = (table.locator("th").nth(place).bounding_box() for place in (-1, 0))
        assert first["x"] >= 0 and last["x"] + last["width"] <= 360


def test_it_prints_on_paper_of_its_own_width(page: Path, opened: Open, tmp_path: Path) -> None:
    with opened(page) as seen:
        before = seen.page.locator("#curves svg").get_attribute("width")
        seen.page.pdf(path=tmp_path / "page.pdf", prefer_css_page_size=True, print_background=True)
        content = (tmp_path / "page.pdf").read_bytes()
        sheets = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", content)
        assert 2 <= len(sheets) <= 9
        assert all(abs(float(w) - 595) < 2 and abs(float(h) - 842) < 2 for w, h in sheets)
        assert seen.page.locator("#curves svg").get_attribute("width") == before
        seen.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        seen.page.emulate_media(media="print")
        breaks = "notes => notes.map(each => getComputedStyle(each).breakAfter)"
        end, lead = (f"section:has({chart}) > .note" for chart in ("#ends", ".pseudo"))
        assert seen.page.locator(end).evaluate_all(breaks) == [
            "auto"
        ]  # the next section may begin another sheet
        assert seen.page.locator(lead).evaluate_all(breaks) == ["avoid"]
        widths = seen.page.evaluate(
            "[...document.querySelectorAll('svg')].map(each => Number(each.getAttribute('width')))"
        )
        assert max(widths) <= 680


@pytest.mark.parametrize("width", [360, 1200])
def test_long_names_of_classes_and_clients_are_read_and_do_not_overlap(
    made: Made, opened: Open, tmp_path: Path, width: int
) -> None:
    data = page_data(gather([made.all / "semifl"]), ModelReport())
    group = data["groups"][0]
    classes = [f"pneumonia, {kind}" for kind in ("viral", "bacterial", *"abcdefgh")]
    clients = [
        "hub",
        "Charité Berlin",
        "St. Mary's, London",
        *(f"practice {number}" for number in range(4)),
    ]
    group["exam"]["classes"] = group["holders"]["classes"] = classes
    group["holders"]["names"] = clients
    (tmp_path / "page.html").write_text(html_of(data))
    with opened(tmp_path / "page.html", width=width) as seen:
        assert {*clients} <= {*seen.page.locator("#holders svg text").all_text_contents()}
        below = seen.page.locator("#confusion svg text[transform]")
        assert {"pneumonia, viral", "pneumonia, a"} <= {*below.all_text_contents()}
        beside = seen.page.locator("#confusion svg text:not(.small)").all_text_contents()
        assert len(set(beside)) == len(classes)
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        lefts = seen.page.locator("svg text").evaluate_all(
            "all => all.map(each => each.getBoundingClientRect().left)"
        )
        assert min(lefts) >= 0


def test_hundreds_of_classes_are_drawn(made: Made, opened: Open, tmp_path: Path) -> None:
    data, count = page_data(gather([made.all / "semifl"]), ModelReport()), 400
    (group,) = data["groups"]
    names = [f"kind {number}" for number in range(count)]
    held = [[1] * count for _ in range(201)]
    group["holders"] |= {"classes": names, "names": ["hub", *map(str, range(200))], "clients": 200}
    group["holders"] |= {"labelled": held, "unlabelled": held}
    group["exam"] |= {
        "classes": names,
        "confusion": [[int(a == b) for a in range(count)] for b in range(count)],
    }
    (tmp_path / "page.html").write_text(html_of(data))
    with opened(tmp_path / "page.html", width=360) as seen:
        assert seen.page.locator("#confusion rect").count() == count
        assert "taken for kind" in seen.hover("#confusion", 0.6, 0.5)
        assert "class kind" in seen.hover("#holders", 0.5, 0.5)


def test_hostile_names_are_shown_and_do_nothing(tmp_path: Path, opened: Open) -> None:
    place = hostile_runs(tmp_path)
    with opened(write_page([tmp_path], tmp_path / "page.html", title=HOSTILE)) as seen:
        assert seen.page.title() == HOSTILE and HOSTILE in seen.page.inner_text("header")
        assert place.name in seen.page.inner_text("h1")
        assert HOSTILE in seen.hover("#confusion", 0.3, 0.1)
        assert seen.page.locator("img:not(.examples img)").count() == 0
        assert seen.requests == [(tmp_path / "page.html").as_uri()]


def test_an_unfinished_run_without_a_test_yet_and_one_seed_are_drawn(
    tmp_path: Path, opened: Open, made: Made
) -> None:
    without_checkpoint(made.all / "semifl/seed-0", tmp_path / "run")
    (tmp_path / "run/model.safetensors").unlink()
    content = (tmp_path / "run/metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "run/metrics.jsonl").write_text("".join(content[:1]))
    with opened(write_page([tmp_path / "run"], tmp_path / "page.html")) as seen:
        assert "round 1 of 3" in seen.page.inner_text("header")
        assert "not finished" in seen.page.inner_text(
            "main"
        ) and "Where it ended" not in seen.page.inner_text("main")
        assert f"fedglean resume {tmp_path / 'run'}" in seen.page.inner_text("main")
        assert seen.page.locator("#confusion").count() == 0
        ticks = [
            each
            for each in seen.page.locator("#curves svg text").all_text_contents()
            if re.fullmatch(r"[\d.]+ %", each)
        ]
        values = [float(each.removesuffix(" %")) for each in ticks]
        assert max(values) - min(values) >= 1  # no axis of hundredths around a single value


def test_a_watched_page_grows_by_itself_and_stays_where_it_is_read(
    tmp_path: Path, opened: Open, made: Made
) -> None:
    without_checkpoint(made.all / "semifl/seed-0", tmp_path / "run")
    metrics = tmp_path / "run/metrics.jsonl"
    content = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(content[:2]))
    (tmp_path / "run/model.safetensors").rename(tmp_path / "model")
    with Watcher([tmp_path / "run"]) as watcher:
        thread = Thread(target=watcher.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            with opened(watcher.address) as seen:
                assert "round 2 of 3" in seen.page.inner_text(".kicker")
                seen.page.locator("#sent svg").focus()
                seen.page.evaluate("window.mine = 1; window.scrollTo(0, 400)")
                metrics.write_text("".join(content))
                (tmp_path / "model").rename(tmp_path / "run/model.safetensors")
                seen.page.get_by_text("· finished").wait_for()
                assert seen.page.evaluate("[window.mine, window.scrollY]") == [1, 400]
                assert seen.page.evaluate("document.activeElement.closest('figure')?.id") == "sent"
                assert seen.page.locator("#confusion svg").count() == 1
                hosts = {re.match(r"\w+://[^/]+/", address)[0] for address in seen.requests}  # type: ignore[index]
                assert hosts <= {watcher.address, "data:,"}
        finally:
            watcher.shutdown()
            thread.join()
