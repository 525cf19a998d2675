"use strict";
/* Charts in SVG. Text reaches the page as text nodes only, so a name can never become a tag.

   A chart is a function of the width it has. Every one answers to the pointer, a tap and the arrow keys: it hands
   `answer` a list of stops, {x, y, title, rows: [[colour, name, value], ...]}, and the nearest one is told. */

const SHAPES = new Set(["svg", "g", "path", "line", "circle", "rect", "text"]);
const NARROW = 520;

function make(tag, attributes = {}, ...children) {
  const shape = SHAPES.has(tag);
  const node = shape ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") node.style.cssText = value; // as an attribute, the page's policy would refuse it
    else if (value !== null && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const write = (x, y, words, attributes = {}) => make("text", { x, y, ...attributes }, words);
const stroke = (x1, y1, x2, y2, attributes) => make("line", { x1, y1, x2, y2, ...attributes });
const dot = (x, y, r, fill, attributes = {}) => make("circle", { cx: x, cy: y, r, fill, ...attributes });
const ringed = (x, y, r, fill) => dot(x, y, r, fill, { stroke: "var(--paper)", "stroke-width": 1.5 });
const middle = { "text-anchor": "middle" };
const end = { "text-anchor": "end" };
const coloured = (colour, more = {}) => ({ class: "strong", style: `fill:${colour}`, ...more });

/* Numbers as people say them. */

const sum = (values) => values.reduce((total, value) => total + (value ?? 0), 0);
const mean = (values) => sum(values) / values.length;
/* Of more values than a call takes arguments. */
const lowest = (values) => values.reduce((low, value) => Math.min(low, value), Infinity);
const highest = (values) => values.reduce((high, value) => Math.max(high, value), -Infinity);
const points = (share) => (100 * share).toFixed(1);
const percent = (share) => `${points(share)} %`;
const whole = new Intl.NumberFormat("en").format;
const plural = (count, word) => `${whole(count)} ${word}${count === 1 ? "" : "s"}`;
const short = (text, longest) => (text.length > longest ? `${text.slice(0, longest - 1)}…` : text);
const longest = (texts, most) => Math.max(...texts.map((text) => Math.min(most, text.length)));

function size(bytes) {
  let unit = 0;
  for (; bytes >= 1000 && unit < 4; unit += 1) bytes /= 1000;
  return `${unit ? bytes.toFixed(1) : Math.round(bytes)} ${["B", "kB", "MB", "GB", "TB"][unit]}`;
}

function duration(seconds) {
  if (seconds < 10) return `${seconds ? seconds.toFixed(seconds < 1 ? 2 : 1) : 0} s`;
  const rounded = Math.round(seconds), minutes = Math.floor(rounded / 60), hours = Math.floor(minutes / 60);
  const two = (part) => String(part % 60).padStart(2, "0");
  if (!minutes) return `${rounded} s`;
  return hours ? `${hours} h ${two(minutes)} min` : `${minutes} min ${two(rounded)} s`;
}

function ticks(low, high, count) {
  const rough = (high - low || 1) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, place) => +((first + place) * step).toPrecision(12));
}

/* Places moved as little as needed to be `gap` apart, and none beyond `most`. */
function spaced(places, gap, most) {
  const order = places.map((place, index) => ({ place, index })).sort((a, b) => a.place - b.place);
  order.forEach((each, at) => { if (at) each.place = Math.max(each.place, order[at - 1].place + gap); });
  order.reverse().forEach((each, at) => { each.place = Math.min(each.place, at ? order[at - 1].place - gap : most); });
  return order.sort((a, b) => a.index - b.index).map((each) => each.place);
}

function canvas(width, height, describe) {
  const words = { role: "img", tabindex: 0, "aria-label": `${describe} Arrow keys step through its values.` };
  return make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, ...words });
}

/* `column`: only the way across counts, and a line shows it within `box`; `across`: how many stops a row has. */
function answer(svg, stops, { column = false, box = null, across = 1 } = {}) {
  if (!stops.length) return;
  const mark = make("g", { "pointer-events": "none" });
  svg.append(mark);
  let at = -1;
  const show = (place) => {
    at = Math.max(0, Math.min(stops.length - 1, place));
    const stop = stops[at], [x, y, width, height] = stop.box ?? [];
    mark.replaceChildren(...(stop.dots ?? []).map((each) => ringed(each[0], each[1], 4.5, each[2])));
    if (column) mark.prepend(stroke(stop.x, box.top, stop.x, box.bottom, { class: "cursor" }));
    if (stop.box) mark.append(make("rect", { class: "box", x, y, width, height, rx: 2 }));
    const here = svg.getBoundingClientRect(), scale = here.width / svg.viewBox.baseVal.width;
    tell(stop, here.left + stop.x * scale, here.top + stop.y * scale);
  };
  const hide = () => { mark.replaceChildren(); document.getElementById("tip").hidden = true; };
  const point = (event) => {
    const here = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / here.width;
    const x = (event.clientX - here.left) * scale, y = (event.clientY - here.top) * scale;
    const far = (stop) => (column ? Math.abs(stop.x - x) : Math.hypot(stop.x - x, stop.y - y));
    show(stops.reduce((best, stop, index) => (far(stop) < far(stops[best]) ? index : best), 0));
  };
  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
  svg.addEventListener("blur", hide);
  svg.addEventListener("focus", () => {
    if (svg.matches(":focus-visible")) show(at < 0 && column ? stops.length - 1 : at);
  });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across }[event.key];
    if (step) { event.preventDefault(); show(at + step); }
    if (event.key === "Escape") hide();
  });
}

function tell({ title, rows }, x, y) {
  const tip = document.getElementById("tip");
  const row = ([colour, name, value]) => make("div", {},
    make("span", {}, colour ? make("i", { style: `background:${colour}` }) : null, name), make("span", {}, value));
  tip.replaceChildren(make("b", {}, title), ...rows.map(row));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect(), right = x + 14 + width <= window.innerWidth;
  tip.style.left = `${Math.max(8, Math.min(window.innerWidth - width - 8, right ? x + 14 : x - width - 14))}px`;
  tip.style.top = `${Math.max(8, Math.min(window.innerHeight - height - 8, y - height - 12))}px`;
}

function legend(entries) {
  const item = ([colour, words]) => make("li", {}, make("span", { style: `background:${colour}` }), words);
  return make("ul", { class: "legend" }, entries.map(item));
}

/* A line's dashes as a background. */
function dashes(colour, dash) {
  let at = 0;
  const part = (length, place) => {
    const start = at;
    at += Number(length);
    return `${place % 2 ? "transparent" : colour} ${start}px ${at}px`;
  };
  return `background:repeating-linear-gradient(90deg, ${(dash ?? "9 0").split(" ").map(part).join(", ")})`;
}

function lineLegend(series) {
  const look = (each) => dashes(each.colour, each.dash);
  const item = (each) => make("li", {}, make("span", { class: "stroke", style: look(each) }), lastOf(each));
  return make("ul", { class: "legend" }, series.map(item));
}

/* Lines. A series is {label, colour, dash, points}; a point is a round with its mean, the values of its seeds, and
   what was sent and how much time had gone by then. `against` says what stands below. */

const lastOf = (series, most = 99) => `${short(series.label, most - 7)} ${percent(series.points.at(-1).y)}`;
const range = (values) => `${points(Math.min(...values))}–${points(Math.max(...values))}`;
const band = ({ values, y }) => percent(y) + (values.length > 1 ? ` (${range(values)})` : "");
const roundName = (point) => (point.final ? "after the last round" : `round ${point.round}`);
const BELOW = { round: "round", bytes: "bytes sent and received by all clients", seconds: "seconds per seed" };

function lineChart(width, options) {
  const { series, height } = options, svg = canvas(width, height, options.describe);
  const plot = scales(width, options);
  axes(svg, plot, options.against, width);
  for (const each of series) drawLine(svg, plot, options.against, each);
  if (width >= NARROW) {
    const places = spaced(series.map((each) => plot.y(each.points.at(-1).y) + 4), 17, plot.bottom + 4);
    series.forEach((each, at) =>
      svg.append(write(plot.right + 8, places[at], lastOf(each, 34), coloured(each.colour))));
  }
  const stops = options.against === "round" ? roundStops(series, plot) : pointStops(series, plot, options.against);
  answer(svg, stops, { column: options.against === "round", box: plot });
  return width < NARROW ? [lineLegend(series), svg] : svg;
}

function scales(width, { series, against, rounds, height }) {
  const all = series.flatMap((each) => each.points);
  const room = width < NARROW ? 14 : 7.8 * longest(series.map((each) => lastOf(each, 34)), 34) + 16;
  const plot = { left: 46, top: 12, right: width - room, bottom: height - 40, rounds };
  plot.start = against === "round" ? 1 : 0;
  plot.stop = Math.max(against === "round" ? rounds : 0, highest(all.map((point) => point[against])));
  const low = lowest(all.map((point) => point.low)), high = highest(all.map((point) => point.high));
  const margin = Math.max(0.04 * (high - low), 0.01);
  [plot.least, plot.most] = [Math.max(0, low - margin), Math.min(1, high + margin)];
  plot.x = (value) => plot.left + (value - plot.start) / (plot.stop - plot.start || 1) * (plot.right - plot.left);
  plot.y = (value) => plot.bottom - (value - plot.least) / (plot.most - plot.least) * (plot.bottom - plot.top);
  return plot;
}

function axes(svg, plot, against, width) {
  for (const tick of ticks(100 * plot.least, 100 * plot.most, 5)) {
    const y = plot.y(tick / 100);
    svg.append(stroke(plot.left, y, plot.right, y, { class: "grid" }), write(plot.left - 8, y + 4, `${tick} %`, end));
  }
  const told = { round: String, bytes: (tick) => size(tick).replace(".0", ""), seconds: (tick) => duration(tick) };
  const below = ticks(plot.start, plot.stop, width < NARROW ? 4 : 7);
  for (const tick of below.filter((each) => against !== "round" || (Number.isInteger(each) && each <= plot.rounds))) {
    svg.append(write(plot.x(tick), plot.bottom + 18, told[against](tick), middle));
  }
  svg.append(stroke(plot.left, plot.bottom, plot.right, plot.bottom, { class: "axis" }),
    write(plot.right, plot.bottom + 36, BELOW[against], end));
}

/* Who never sends anything has no way across: a level line then. */
const still = (each, against) => against !== "round" && !each.points.at(-1)[against];

function drawLine(svg, { x, y, left, right }, against, each) {
  const look = { stroke: each.colour, "stroke-width": 2.2, "stroke-dasharray": each.dash, fill: "none" };
  if (still(each, against)) {
    const level = y(each.points.at(-1).y);
    svg.append(stroke(left, level, right, level, look));
    return;
  }
  const way = (pick) => each.points.map((point) => `${x(point[against]).toFixed(1)},${y(point[pick]).toFixed(1)}`);
  const around = `M${way("low").join("L")}L${way("high").reverse().join("L")}Z`;
  const shade = { fill: each.colour, "fill-opacity": 0.14 };
  if (each.points[0].values.length > 1) svg.append(make("path", { d: around, ...shade }));
  svg.append(make("path", { d: `M${way("y").join("L")}`, "stroke-linejoin": "round", ...look }));
  const best = each.points.reduce((top, point) => (point.y > top.y ? point : top));
  if (each.best || each.points.length === 1) svg.append(ringed(x(best[against]), y(best.y), 4.5, each.colour));
}

function roundStops(series, { x, y }) {
  const rounds = [...new Set(series.flatMap((each) => each.points.map((point) => point.round)))].sort((a, b) => a - b);
  return rounds.map((round) => {
    const at = (each) => each.points.find((point) => point.round === round);
    const here = series.map((each) => [each, at(each)]).filter((pair) => pair[1]);
    const dots = here.map(([each, point]) => [x(round), y(point.y), each.colour]);
    const rows = here.map(([each, point]) => [each.colour, each.label, band(point)]);
    return { x: x(round), y: Math.min(...dots.map((each) => each[1])), dots, title: roundName(here[0][1]), rows };
  });
}

function pointStops(series, { x, y, right }, against) {
  return series.flatMap((each) => {
    const last = each.points.at(-1);
    if (still(each, against)) {
      const rows = [[each.colour, "sends nothing; last round", band(last)]];
      return [{ x: right, y: y(last.y), title: each.label, rows }];
    }
    return each.points.map((point) => ({
      x: x(point[against]), y: y(point.y), dots: [[x(point[against]), y(point.y), each.colour]],
      title: `${each.label}, ${roundName(point)}`,
      rows: [[each.colour, "test accuracy", band(point)], [null, "sent so far", size(point.bytes)],
        [null, "time so far", duration(point.seconds)]],
    }));
  });
}

/* A row a group: every seed in its last and its best round. A row is {label, colour, last, best, seeds}. */
function seedChart(width, rows) {
  const narrow = width < NARROW, tall = narrow ? 46 : 34, right = width - 56, height = tall * rows.length + 30;
  const left = narrow ? 8 : 32 + 7.2 * longest(rows.map((row) => row.label), 26);
  const values = rows.flatMap((row) => [...row.last.values, ...row.best.values]);
  const low = Math.max(0, Math.min(...values) - 0.02), high = Math.min(1, Math.max(...values) + 0.02);
  const x = (value) => left + (value - low) / (high - low || 1) * (right - left);
  const svg = canvas(width, height, "Accuracy of every seed in the last and in the best round."), stops = [];
  for (const tick of ticks(100 * low, 100 * high, narrow ? 4 : 7)) {
    svg.append(stroke(x(tick / 100), 4, x(tick / 100), height - 24, { class: "grid" }),
      write(x(tick / 100), height - 6, `${tick} %`, middle));
  }
  rows.forEach(({ label, colour, last, best, seeds }, place) => {
    const y = tall * place + (narrow ? 30 : 20), bar = { stroke: colour, "stroke-width": 3 };
    const [at, above, anchor] = narrow ? [left, y - 14, {}] : [left - 14, y + 4, end];
    svg.append(write(at, above, short(label, narrow ? 40 : 26), coloured(colour, anchor)),
      stroke(x(Math.min(...last.values)), y, x(Math.max(...last.values)), y, { stroke: colour, "stroke-width": 1.5 }),
      ...best.values.map((value) => dot(x(value), y, 4, "none", { stroke: colour, "stroke-opacity": 0.65 })),
      ...last.values.map((value) => dot(x(value), y, 4, colour, { "fill-opacity": 0.8 })),
      stroke(x(last.mean), y - 9, x(last.mean), y + 9, bar),
      write(right + 8, y + 4, percent(last.mean), coloured(colour)));
    last.values.forEach((value, at) => stops.push({
      x: x(value), y, box: [x(value) - 7, y - 7, 14, 14], title: `${label}, seed ${seeds[at]}`,
      rows: [[colour, `last round (${last.rounds[at]})`, percent(value)],
        [null, `best round (${best.rounds[at]})`, percent(best.values[at])]],
    }));
  });
  answer(svg, stops);
  return svg;
}

/* Bars of parts that add up; a row is {label, words, parts: [{name, value, colour}, ...]}. */
function barChart(width, rows, told, describe) {
  const tall = 44, total = (row) => sum(row.parts.map((part) => part.value)), most = Math.max(...rows.map(total)) || 1;
  const svg = canvas(width, tall * rows.length + 4, describe), stops = [];
  rows.forEach((row, place) => {
    const top = tall * place;
    const words = row.words ?? told(total(row)), room = Math.floor(width / 7) - words.length - 1;
    let x = 0;
    svg.append(write(0, top + 13, short(row.label, Math.max(6, Math.min(30, room))), coloured("var(--ink)")),
      write(width, top + 13, words, end));
    for (const { name, value, colour } of row.parts.filter((part) => part.value > 0)) {
      const wide = value / most * width, box = [x, top + 19, Math.max(1, wide - 1), 14];
      svg.append(make("rect", { x, y: box[1], width: box[2], height: box[3], fill: colour }));
      const rows = [[colour, name, told(value)], [null, "share", percent(value / total(row))]];
      stops.push({ x: x + wide / 2, y: top + 26, box, title: row.label, rows });
      x += wide;
    }
    if (!total(row)) svg.append(stroke(0, top + 26, width, top + 26, { class: "axis" }));
  });
  answer(svg, stops);
  return svg;
}

/* Names below columns: level where all fit into their `room`, else aslant, which takes a deeper foot. */
function feet(names, room) {
  const wide = 6.6 * longest(names, 18), aslant = wide > room, look = { class: "small", ...(aslant ? end : middle) };
  const turned = (x, y) => (aslant ? { transform: `rotate(-45 ${x} ${y})` } : {});
  return {
    deep: aslant ? 0.72 * wide + 18 : 24, reach: aslant ? 0.72 * wide : 0,
    write: (name, x, y) => write(x, y + 14, short(name, 18), { ...look, ...turned(x, y + 8) }),
  };
}

/* As many letters of a class's name as leave the chart beside it room. */
const letters = (width, most) => Math.min(most, Math.floor(width / 20));

/* Who holds what: half discs, labelled on the left and unlabelled on the right, their area the number of images. The
   hub has a scale of its own. Many clients are broken into lines; what does not fit into four is left out. */
function bubbleChart(width, found, caption) {
  const rows = found.classes.length, first = sum(found.labelled[0]) ? 0 : 1, gap = first ? 0 : 10;
  const most = letters(width, 22), beside = 14 + 6.6 * longest(found.classes, most);
  const cell = rows > 20 ? 14 : Math.max(25, Math.min(34, (width - beside - gap) / (found.names.length - first)));
  const foot = feet(found.names, cell - 3), left = Math.max(beside, foot.reach - cell / 2), room = width - left - gap;
  const fit = Math.max(4, Math.floor(room / cell)), needed = Math.ceil((found.names.length - first) / fit);
  const lines = Math.max(1, Math.min(needed, rows > 20 ? 1 : 4)), tall = cell * rows + foot.deep + 10;
  const shown = found.names.map((_, place) => place).slice(first, first + fit * lines);
  const each = Math.ceil(shown.length / lines);
  const largest = highest([1, ...found.labelled.slice(1), ...found.unlabelled.slice(1)].flat());
  const hub = Math.max(1, ...found.labelled[0]), [labelled, unlabelled] = found.total.map(whole);
  const describe = `Images by client and class: ${labelled} labelled, ${unlabelled} not.`;
  const svg = canvas(width, tall * lines, describe), stops = [];
  for (let line = 0; line < lines; line += 1) {
    const here = shown.slice(line * each, (line + 1) * each), apart = line ? 0 : gap, top = tall * line;
    const y = (kind) => top + cell * (rows - kind - 0.5);
    const x = (column) => left + cell * (column + 0.5) + (here[column] ? apart : 0);
    found.classes.forEach((name, kind) => svg.append(
      stroke(left, y(kind), left + apart + cell * here.length, y(kind), { class: "grid" }),
      write(left - 6, y(kind) + 4, short(name, most), { class: "small", ...end })));
    here.forEach((holder, column) => {
      svg.append(foot.write(found.names[holder], x(column), top + cell * rows));
      found.classes.forEach((_, kind) =>
        stops.push(...bubble(svg, found, holder, kind, x(column), y(kind), cell, holder ? largest : hub)));
    });
  }
  answer(svg, stops);
  const drawn = shown.length + first - 1, scale = first ? "" : ` (hub: ${whole(hub)}, on its own scale)`;
  const all = drawn === found.clients ? `All ${plural(drawn, "client")}.`
    : `The first ${drawn} of ${whole(found.clients)} clients are drawn.`;
  caption.textContent = "Clients across, classes upwards; the area is the number of images, "
    + `at most ${whole(largest)} in a half disc${scale}. ${all}`;
  return svg;
}

function bubble(svg, found, holder, kind, x, y, cell, most) {
  const halves = [["labelled", 0], ["unlabelled", 1]].map(([part, side]) => [part, side, found[part][holder][kind]]);
  for (const [part, side, count] of halves.filter((half) => half[2])) {
    const r = Math.max(1.2, 0.47 * cell * Math.sqrt(count / most));
    svg.append(make("path", { d: `M${x},${y - r}A${r},${r} 0 0 ${side} ${x},${y + r}Z`, fill: `var(--${part})` }));
  }
  const title = `${holder ? "client " : ""}${found.names[holder]}, class ${found.classes[kind]}`;
  const rows = halves.map(([part, , count]) => [`var(--${part})`, part, whole(count)]);
  return halves.some((half) => half[2]) ? [{ x, y, box: [x - cell / 2, y - cell / 2, cell, cell], title, rows }] : [];
}

/* Accuracy by class; `values` holds a list over the seeds for each. */
function classChart(width, names, values) {
  const tall = names.length > 30 ? 15 : 24, foot = tall * names.length;
  const left = 20 + 7 * longest(names, 16), right = width - 52;
  const svg = canvas(width, foot + 26, "Accuracy by class."), x = (value) => left + value * (right - left), stops = [];
  for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
    svg.append(stroke(x(tick), 2, x(tick), foot, { class: "grid" }),
      write(x(tick), foot + 18, `${100 * tick} %`, middle));
  }
  names.forEach((name, kind) => {
    const y = tall * (kind + 0.5), own = values[kind];
    const centre = mean(own), low = Math.min(...own), high = Math.max(...own);
    svg.append(write(left - 12, y + 4, short(name, 16), end));
    if (!own.length) return;
    const reach = { stroke: "var(--c0)", "stroke-width": 5, "stroke-opacity": 0.25, "stroke-linecap": "round" };
    svg.append(stroke(x(low), y, x(high), y, reach), dot(x(centre), y, 5, "var(--c0)"),
      write(right + 12, y + 4, `${Math.round(100 * centre)} %`));
    const spread = own.length > 1 ? [[null, "worst to best seed", `${percent(low)} to ${percent(high)}`]] : [];
    const rows = [["var(--c0)", own.length > 1 ? "mean of the seeds" : "accuracy", percent(centre)], ...spread];
    stops.push({ x: x(centre), y, box: [left, y - tall / 2, right - left, tall], title: `class ${name}`, rows });
  });
  answer(svg, stops);
  return svg;
}

/* Truth downwards, guess across; a row's shares are its strength of colour, blue where right and orange where wrong. */
function confusionChart(width, names, table) {
  const count = names.length, most = letters(width, 18), left = 16 + 7 * longest(names, most), top = 20;
  const cell = Math.min(42, (width - left) / count), step = Math.max(1, Math.ceil(14 / cell)), stops = [];
  const gap = Math.min(0.5, cell / 8), side = cell - 2 * gap, none = [];
  const foot = feet(names, cell * step - 2), tall = top + cell * count + foot.deep;
  const svg = canvas(left + cell * count, tall, "Confusion matrix: truth downwards, guess across.");
  svg.append(write(0, 12, "↓ truth, guess →", { class: "small" }));
  table.forEach((row, truth) => {
    if (truth % step === 0) {
      svg.append(write(left - 6, top + cell * (truth + 0.5) + 4, short(names[truth], most), end),
        foot.write(names[truth], left + cell * (truth + 0.5), top + cell * count));
    }
    const all = sum(row) || 1;
    row.forEach((times, guess) => {
      const right = truth === guess, share = times / all, colour = right ? "var(--c0)" : "var(--c1)";
      const x = left + cell * guess, y = top + cell * truth;
      stops.push({
        x: x + cell / 2, y: y + cell / 2, box: [x, y, cell, cell],
        title: `class ${names[truth]}, ${right ? "recognised" : `taken for ${names[guess]}`}`,
        rows: [[colour, "images", whole(times)], [null, `of those of class ${names[truth]}`, percent(share)]],
      });
      if (!times) { none.push(`M${x + gap},${y + gap}h${side}v${side}h${-side}z`); return; }
      const strength = right ? share : Math.min(1, 0.12 + 1.6 * share), look = { fill: colour, "fill-opacity": strength };
      svg.append(make("rect", { x: x + gap, y: y + gap, width: side, height: side, ...look }));
      const ink = { class: "small", style: `fill:var(--${strength > 0.55 ? "on" : "ink"})`, ...middle };
      if (cell >= 22) svg.append(write(x + cell / 2, y + cell / 2 + 4, String(times), ink));
    });
  });
  svg.append(make("path", { d: none.join(""), fill: "var(--panel)" }));
  answer(svg, stops, { across: count });
  return svg;
}
