/* The page, section by section, from the data in it; `watch` brings newer data. */

const AGAINST = { round: "rounds", bytes: "bytes sent", seconds: "seconds" };
const PSEUDO = { accuracy: "right, of all", confident_share: "confident", confident_accuracy: "right, of confident" };
const PHASES = {
  hub: ["training at the hub", "var(--c0)"], clients: ["clients, gate and sums", "var(--c1)"],
  averaging: ["averaging", "var(--c2)"], test: ["test", "var(--c4)"], write: ["writing", "var(--c3)"],
};
const state = { against: "round", group: null, width: 0 };
let data = JSON.parse(document.getElementById("data").textContent);

/* No line ends between a number and its sign, and a minus is as wide as a plus. */
const tight = (text) => text.replace(/(\d) %/g, "$1\u00a0%").replace(/ -(?=\d)/g, " −");
const note = (...words) => make("p", { class: "note" }, ...words);
const section = (title, ...children) => make("section", {}, make("h2", {}, title), ...children);
const averaged = (group, pick) => mean(group.runs.map(pick));
/* What is trained at one site is run as if that were a client, but nothing is sent. */
const bytesOf = (group, run, way) => (group.federated ? run[way] : run[way].map(() => 0));
const sentBy = (group) => averaged(group, (run) => sum(bytesOf(group, run, "bytes_down")) + sum(bytesOf(group, run, "bytes_up")));

/* What is wider than a phone is pushed aside there; its first column stays. */
function table(title, headings, rows) {
  const head = make("tr", {}, headings.map((words) => make("th", { scope: "col" }, words)));
  const body = rows.map((row) => make("tr", {}, row.map((content) => make("td", {}, content))));
  const whole = make("table", {}, make("thead", {}, head), make("tbody", {}, body));
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title }, whole);
}

/* A figure that is drawn anew whenever its width changes. */
function chart(draw, caption = null, attributes = {}) {
  const place = make("div", {}), words = make("figcaption", {}, caption ?? "");
  const figure = make("figure", attributes, place, words);
  figure.draw = () => place.replaceChildren(...[draw(Math.max(280, Math.floor(place.clientWidth)), words)].flat());
  return figure;
}

const redraw = () => document.querySelectorAll("figure").forEach((figure) => figure.draw());

/* Methods have the colours; what stands beside them to compare with is grey and broken. */
function style(group) {
  const place = data.groups.filter((each) => each.role === group.role).indexOf(group);
  if (group.role === "method" || !data.groups.some((each) => each.role === "method")) {
    return { colour: `var(--c${place % 7})`, dash: place < 7 ? null : "6 2" };
  }
  const dash = group.role === "reference" ? ["2 3", "2 6", "2 3 2 8"] : ["7 4", "7 4 2 4", "12 4"];
  return { colour: "var(--quiet)", dash: dash[place % 3] };
}

/* A line's points: the rounds for which every seed has the value. */
function track(group, value) {
  const seeds = group.runs.map((run) => {
    const [down, up] = ["bytes_down", "bytes_up"].map((way) => bytesOf(group, run, way));
    let bytes = 0, seconds = 0;
    return new Map(run.round.map((number, place) => {
      bytes += down[place] + up[place];
      seconds += run.seconds[place];
      const final = run.final[place], round = number + (final ? 1 : 0);
      return [round, { round, final, bytes, seconds, value: value(run, place) ?? null }];
    }));
  });
  const known = (round) => seeds.every((seed) => (seed.get(round)?.value ?? null) !== null);
  const common = [...seeds[0].keys()].filter(known);
  return common.map((round) => {
    const steps = seeds.map((seed) => seed.get(round)), values = steps.map((step) => step.value);
    return {
      round, final: steps[0].final, values, y: mean(values), low: Math.min(...values), high: Math.max(...values),
      bytes: mean(steps.map((step) => step.bytes)), seconds: mean(steps.map((step) => step.seconds)),
    };
  });
}

/* A lone method with several predictors gets a line for each, as in the picture in its folder. */
function accuracyLines() {
  const lone = data.groups.length === 1 && data.groups[0].predictors.length > 1;
  const line = (group, name, place) => ({
    label: lone ? `${group.label} ${name}` : group.label, best: true,
    ...(lone ? { colour: `var(--c${place % 7})`, dash: null } : style(group)),
    points: track(group, (run, at) => run.accuracy[name][at]),
  });
  const lines = data.groups.flatMap((group) =>
    group.predictors.slice(0, lone ? undefined : 1).map((name, place) => line(group, name, place)));
  return lines.filter((each) => each.points.length);
}

/* How far a group came. */
const standing = (group) => `round ${Math.max(...group.runs.map((run) => run.round.at(-1) ?? 0))} of ${group.rounds}`;

const unfinished = () => data.groups.find((group) => !group.finished && !group.failed);

function header() {
  const kinds = [...new Set(data.groups.map((group) => group.data))].join(", ");
  const going = unfinished();
  const open = going || data.coming.length, at = going ? `: ${standing(going)}` : "";
  const stand = open ? `${data.live ? "live, " : ""}not finished${at}` : "finished";
  const begun = data.coming.length ? `${data.groups.length} of ` : "";
  const kicker = `fedglean · ${kinds} · ${begun}${plural(data.groups.length + data.coming.length, "experiment")} · ${stand}`;
  return make("header", {}, make("p", { class: data.live && open ? "kicker live" : "kicker" }, kicker),
    data.title === data.headline.sentence ? null : make("p", { class: "kicker" }, data.title),
    make("h1", {}, tight(data.headline.sentence)), make("p", { class: "deck" }, tight(data.headline.detail)),
    data.groups.filter((group) => group.failed).map(({ label, failed }) =>
      make("p", {}, make("b", {}, `${label} did not finish: `), failed)),
    data.coming.length ? make("p", { id: "coming" }, make("b", {}, "Still to come: "), data.coming.join(", ")) : null,
    helped());
}

/* Commands, a line each; one too long for the page goes on below, further in, and is broken between words alone. */
function commands(text, attributes = {}) {
  const parts = (line) => line.split(/( )/).map((part) => (part === " " ? part : make("span", {}, part)));
  return make("pre", attributes, text.split("\n").map((line) => make("code", {}, parts(line))));
}

function helped() {
  const { answers, how, why } = data.help;
  const told = (each) => make("p", {}, make("span", { class: "verdict" }, `${each.verdict}. `), tight(each.sentence));
  return make("div", { class: "answer" }, make("h2", {}, "Did the unlabelled clients help?"), answers.map(told),
    why ? make("p", {}, why) : null, how ? commands(how.join("\n")) : null);
}

function curves() {
  const several = data.groups.some((group) => group.runs.length > 1);
  const radio = ([name, words]) => make("label", {}, make("input", {
    type: "radio", name: "against", value: name, id: `against-${name}`, checked: state.against === name ? "" : null,
    onchange: () => { state.against = name; document.getElementById("curves").draw(); },
  }), words);
  const draw = (width) => {
    const series = accuracyLines(), rounds = Math.max(...data.groups.map((group) => group.rounds));
    if (!series.length) return note("No round has been tested yet.");
    const ends = series.map((each) => `${each.label} ends at ${percent(each.points.at(-1).y)}`).join(", ");
    const describe = `Test accuracy against ${AGAINST[state.against]}: ${ends}.`;
    return lineChart(width, { series, against: state.against, rounds, describe, height: width < NARROW ? 280 : 360 });
  };
  const seeds = several ? "Line: mean of the seeds; band: worst to best seed. " : "", its = several ? "the mean's best" : "best";
  const after = data.groups.some((group) => group.runs.some((run) => run.final.some(Boolean)))
    ? " A method's final step after its last round is drawn beyond it." : "";
  const choices = [make("legend", {}, "Against"), ...Object.entries(AGAINST).map(radio)];
  return section("Test accuracy, round by round", make("fieldset", { class: "switch screen" }, choices),
    chart(draw, `${seeds}Dot: ${its} round; number: last round.${after}`, { id: "curves" }));
}

function ends() {
  const groups = data.groups.filter((group) => group.predictors.length);
  if (!groups.length) return null;
  const rows = groups.map((group) => {
    const seeds = group.runs.filter((run) => run.accuracy[group.predictors[0]]?.some((value) => value !== null));
    const [last, best] = [group.last, group.best].map((scores) => scores[group.predictors[0]]);
    return { label: group.label, colour: style(group).colour, last, best, seeds: seeds.map((run) => run.seed) };
  });
  const around = ({ values, deviation }) => make("span", { class: "note" }, `± ${points(deviation)} (${range(values)})`);
  const spread = (scores) => [percent(scores.mean), scores.values.length > 1 ? around(scores) : null];
  const paired = Object.keys(data.against).length > 0, signed = (share) => (share < 0 ? "−" : "+") + points(Math.abs(share));
  const interval = ({ low, high }) => make("span", { class: "note" }, `${signed(low)} to ${signed(high)}`);
  const gap = ({ label }) => {
    const found = data.against[label];
    return found ? [signed(found.mean), interval(found)] : found === null ? "the best" : "–";
  };
  const lines = groups.flatMap((group) => group.predictors.map((name, place) => [
    [group.predictors.length > 1 ? `${group.label} ${name}` : group.label,
      place ? null : make("span", { class: "note" }, group.summary)],
    String(group.runs.length), spread(group.last[name]), spread(group.best[name]), ...(paired ? [place ? "" : gap(group)] : []),
    ...(place ? ["", ""] : [duration(averaged(group, (run) => sum(run.seconds))), sentBy(group) ? size(sentBy(group)) : "nothing"]),
  ]));
  const headings = ["experiment", "seeds", "last round", "best round", ...(paired ? ["against the best"] : []), "time per seed",
    "sent per seed"];
  const caption = "Filled: a seed after its last round; hollow: in its best round, which is chosen on the test set; "
    + "bar: mean of the last rounds.";
  const many = groups.length > 1 || groups[0].runs.length > 1;
  const seeds = many ? chart((width) => seedChart(width, rows), caption, { id: "ends" }) : null;
  const over = [...new Set(Object.values(data.against).filter(Boolean).map((each) => each.over))].join(", or ");
  const words = `Against the best: points after the last round, paired by seed; 95 % intervals over ${over}.`;
  const how = over ? note(words) : null;
  const title = unfinished() || data.coming.length ? "Where it stands" : "Where it ended";
  return section(title, seeds, table(title, headings, lines), how);
}

function pseudo() {
  const panels = data.groups.map((group) => {
    const kinds = Object.keys(PSEUDO).filter((kind) => group.runs[0].pseudo[kind]);
    const series = kinds.map((kind, place) => ({
      label: PSEUDO[kind], colour: `var(--c${place})`, dash: [null, "7 4", "2 3"][place],
      points: track(group, (run, at) => run.pseudo[kind]?.[at]),
    })).filter((each) => each.points.length);
    const describe = `Pseudo-labels of ${group.label} over the rounds.`;
    const draw = (width) => lineChart(width, { series, against: "round", rounds: group.rounds, describe, height: 270 });
    return series.length ? [group.label, draw] : null;
  }).filter(Boolean);
  if (!panels.length) return null;
  const heading = (label) => (panels.length > 1 ? make("h3", {}, label) : null);
  const figure = (draw, place) => chart(draw, null, { class: "pseudo", id: `pseudo-${place}` });
  const named = ([label, draw], place) => make("div", {}, heading(label), figure(draw, place));
  return section("How good were the pseudo-labels?",
    note("Compared with the true labels where they are known; no client and no hub saw those. “Confident” is the share that "
      + "passed the method's threshold; not all methods have one."),
    make("div", { class: panels.length > 1 ? "pair" : null }, panels.map(named)));
}

function costs() {
  const ways = [["to the clients", "var(--c0)", "bytes_down"], ["from the clients", "var(--c1)", "bytes_up"]];
  const sent = data.groups.map((group) => {
    const total = sentBy(group), rounds = Math.max(1, ...group.runs.map((run) => run.final.filter((final) => !final).length));
    const within = averaged(group, (run) => sum(ways.map(([, , way]) => sum(bytesOf(group, run, way).filter((_, at) => !run.final[at])))));
    const parts = ways.map(([name, colour, way]) => ({ name, colour, value: averaged(group, (run) => sum(bytesOf(group, run, way))) }));
    const words = total ? `${size(total)}, ${size(within / rounds)} per round` : "nothing sent";
    return { label: group.label, parts, words };
  });
  const time = data.groups.map((group) => {
    const known = Object.keys(PHASES).filter((name) => name in group.runs[0].phases);
    const parts = known.map((name) => {
      const [words, colour] = PHASES[name];
      return { name: words, colour, value: averaged(group, (run) => run.phases[name] ?? 0) };
    });
    const seconds = averaged(group, (run) => sum(run.seconds));
    const all = { name: "phases were not recorded", colour: "var(--quiet)", value: seconds };
    return { label: group.label, parts: known.length ? parts.filter((part) => part.value > 0) : [all] };
  });
  const seen = new Map(time.flatMap((row) => row.parts.map((part) => [part.name, part.colour])));
  const drawSent = (width) => barChart(width, sent, size, "Bytes sent, a bar for each experiment.");
  const drawTime = (width) => barChart(width, time, duration, "Seconds by phase, a bar for each experiment.");
  return make("section", { class: "pair" },
    make("div", {}, make("h2", {}, "Communication"), legend(ways.map(([name, colour]) => [colour, name])),
      chart(drawSent, `Per seed, over all rounds. ${data.groups.map(attendance).join("")}`, { id: "sent" })),
    make("div", {}, make("h2", {}, "Time by phase"), legend([...seen].map(([name, colour]) => [colour, name])),
      chart(drawTime, "Per seed, over all rounds; seeds that ran side by side share their time. The table's "
        + "“time per seed” leaves out writing. On a GPU, work counts where the program waits for it.", { id: "time" })));
}

function attendance(group) {
  const rounds = Math.max(1, ...group.runs.map((run) => run.final.filter((final) => !final).length));
  const [answered, silent] = ["answered", "abstained"].map((what) => averaged(group, (run) => sum(run[what])) / rounds);
  if (!group.federated || (!answered && !silent)) return "";
  return `${group.label}: ${answered.toFixed(1)} clients answered per round`
    + `${silent >= 0.05 ? `, ${silent.toFixed(1)} had nothing to send` : ""}. `;
}

function closer() {
  if (!data.groups[state.group]) state.group = data.groups.findIndex((group) => group.label === data.headline.label);
  const group = data.groups[state.group], seed = group.runs.length > 1 ? `, seed ${group.runs[0].seed},` : "";
  const chosen = (place) => (place === state.group ? "" : null);
  const option = (each, place) => make("option", { value: place, selected: chosen(place) }, each.label);
  const choose = (event) => { state.group = Number(event.target.value); render(); };
  const choice = make("p", { class: "screen" }, make("label", { for: "group" }, "Look at "),
    make("select", { id: "group", onchange: choose }, data.groups.map(option)));
  const parts = [holders(group, seed), classes(group, seed), examples(group, seed), refused(group), again(group)];
  return data.groups.length > 1 ? [section(`A closer look at ${group.label}`, choice), ...parts] : parts;
}

function holders(group, seed) {
  const found = group.holders;
  if (found.missing) return section("Who holds what", note(found.missing));
  const [labelled, unlabelled] = [plural(found.total[0], "labelled image"), whole(found.total[1])];
  return section("Who holds what", note(`In ${group.label}${seed} there are ${labelled} and ${unlabelled} unlabelled.`),
    legend([["var(--labelled)", "labelled (left half)"], ["var(--unlabelled)", "unlabelled (right half)"]]),
    chart((width, caption) => bubbleChart(width, found, caption), null, { id: "holders" }));
}

function classes(group, seed) {
  const exam = group.exam, runs = group.runs.filter((run) => run.per_class);
  const names = exam.classes ?? group.holders.classes ?? runs[0]?.per_class.map((_, place) => String(place)) ?? [];
  const own = (kind) => runs.map((run) => run.per_class[kind] ?? null).filter((value) => value !== null);
  const drawKnown = (width) => classChart(width, names, names.map((_, kind) => own(kind)));
  const drawTaken = (width) => confusionChart(width, names, exam.confusion);
  const known = `Accuracy by class after the last round${runs.length > 1 ? "; dot: mean of the seeds, bar: worst to best" : ""}.`;
  const taken = `The final model${seed} on ${whole(exam.tested ?? 0)} test images. Blue: right, orange: wrong; `
    + "the numbers count images.";
  return make("section", { class: "pair tall" },
    make("div", {}, make("h2", {}, "Which classes it knows"),
      runs.length ? chart(drawKnown, known, { id: "classes" }) : note("No round has been tested yet.")),
    make("div", {}, make("h2", {}, "What it confuses"),
      exam.missing ? note(exam.missing) : chart(drawTaken, taken, { id: "confusion" })));
}

function examples(group, seed) {
  const { missing, classes: names, examples: found, wrong, tested } = group.exam;
  if (missing) return null;
  const card = ({ place, image, truth, guess, sure }) => make("li", {},
    make("img", { src: image, alt: `test image ${place}: ${names[truth]}, taken for ${names[guess]}` }),
    make("div", {}, "is ", make("b", {}, names[truth])),
    make("div", {}, "said ", make("b", {}, names[guess]), tight(`, ${percent(sure)}`)));
  const words = wrong ? `The final model${seed} is wrong about ${whole(wrong)} of ${whole(tested)} test images. `
    + "These are the ones that it is most sure about; the number says how sure." : "The final model has every test image right.";
  return section("Sure, and wrong", note(words), make("ul", { class: "examples" }, found.map(card)));
}

function refused(group) {
  const sent = group.runs.some((run) => run.round.length);
  const none = group.failed ? `${group.label} did not finish: ${group.failed}`
    : sent ? `None: everything that the clients of ${group.label} sent passed the checks.` : "No round has been played yet.";
  if (!group.refused.length) return section("Refused uploads", note(none));
  const more = (clients) => (clients.length > 12 ? ` and ${clients.length - 12} more` : "");
  const listed = (clients) => clients.slice(0, 12).join(", ") + more(clients);
  const span = ([first, last]) => (first === last ? String(first) : `${first}–${last}`);
  const rows = group.refused.map((each) => [each.reason, whole(each.count), span(each.rounds), listed(each.clients)]);
  return section("Refused uploads", table("Refused uploads", ["reason", "times", "rounds", "clients"], rows));
}

function again(group) {
  const done = (button) => () => { button.textContent = "Copied"; };
  const press = (event) => navigator.clipboard?.writeText(group.command).then(done(event.target));
  const copy = { type: "button", class: "screen", onclick: press };
  const goesOn = group.resume && !data.live
    ? [note("The run is not finished. This command continues it."), commands(group.resume)] : [];
  return section("Do it again", ...goesOn,
    note("This command repeats it with the configuration below. ", group.deployed
      ? "The result is the same if the same branches answer in every round." : group.exact
      ? "The same machine gives the same result, to the last bit."
      : "With deterministic = false a GPU does not repeat its last bits: the result will differ, as with another seed."),
    commands(group.command, { id: "command" }), make("button", copy, "Copy the command"),
    make("details", { open: "" }, make("summary", {}, "config.toml"), make("pre", { id: "config" }, group.config)));
}

function render() {
  const held = document.activeElement, focused = held?.id || held?.closest("figure")?.id, from = window.scrollY;
  document.title = data.title;
  document.getElementById("tip").hidden = true;
  const parts = [header(), curves(), ends(), pseudo(), costs(), closer()].flat().filter(Boolean);
  document.getElementById("page").replaceChildren(...parts);
  redraw();
  const there = document.getElementById(focused);
  (there?.querySelector("svg") ?? there)?.focus({ preventScroll: true });
  window.scrollTo(0, from);
}

/* Charts are drawn for the sheet before they are printed, and for the screen again afterwards. */
function printing(begun) {
  document.body.classList.toggle("printing", begun);
  redraw();
}

/* `watch` answers 304 while nothing is new. */
async function follow() {
  for (let mark = ""; ;) {
    await new Promise((resolve) => setTimeout(resolve, 1500));
    try {
      const reply = await fetch("data.json", { headers: { "If-None-Match": mark }, cache: "no-store" });
      if (reply.status !== 200) continue;
      mark = reply.headers.get("ETag");
      data = await reply.json();
      render();
    } catch { /* the server has ended; what is shown stays */ }
  }
}

render();
state.width = document.getElementById("page").clientWidth;
new ResizeObserver(() => {
  const width = document.getElementById("page").clientWidth;
  if (width === state.width || document.body.classList.contains("printing")) return;
  state.width = width;
  redraw();
}).observe(document.getElementById("page"));
window.addEventListener("beforeprint", () => printing(true));
window.addEventListener("afterprint", () => printing(false));
if (data.live) follow();
