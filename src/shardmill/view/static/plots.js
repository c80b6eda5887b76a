// Plots drawn by hand in SVG: stacked histograms, lines, and small bars. Colours come from the
// style sheet (.s0 ... .s8), so that they follow the theme.

import { el, svg } from "./dom.js";
import { count, short } from "./words.js";

const WIDTH = 320;
const HEIGHT = 168;
const LEFT = 38;
const BOTTOM = 26;
const TOP = 10;

export function histogram(data, { unit = "", title = "" } = {}) {
  const totals = data.edges
    .slice(1)
    .map((_, bin) => data.series.reduce((sum, s) => sum + s.counts[bin], 0));
  const most = Math.max(1, ...totals);
  const bins = totals.length;
  const x = (value) => LEFT + ((WIDTH - LEFT - 8) * value) / Math.max(1e-9, data.edges[bins]);
  const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - BOTTOM - TOP) * value) / most;
  const bars = [];
  for (let bin = 0; bin < bins; bin += 1) {
    let below = 0;
    data.series.forEach((series, place) => {
      const amount = series.counts[bin];
      if (!amount) return;
      const width = Math.max(1, x(data.edges[bin + 1]) - x(data.edges[bin]) - 1);
      const rect = {
        x: x(data.edges[bin]),
        y: y(below + amount),
        width,
        height: Math.max(1, y(below) - y(below + amount)),
        rx: 1,
        class: `s${place}`,
      };
      bars.push(
        svg(
          "rect",
          rect,
          svg(
            "title",
            {},
            `${data.whole ? bin : `${short(data.edges[bin])} – ${short(data.edges[bin + 1])}`} ${unit}: ${count(amount)}${data.series.length > 1 ? ` of ${series.name}` : ""}`,
          ),
        ),
      );
      below += amount;
    });
  }
  const median = data.count
    ? svg("line", {
        class: "mark",
        x1: x(data.median),
        x2: x(data.median),
        y1: TOP,
        y2: HEIGHT - BOTTOM,
      })
    : null;
  return figure(
    title,
    `median ${short(data.median)}, mean ${short(data.mean)}, most ${short(data.max)} ${unit}`,
    frame(
      data.whole ? wholeTicks(bins, x, unit) : xTicks(data.edges[bins], x, unit),
      yTicks(most, y),
      bars,
      data.whole ? null : median,
    ),
    data.series.length > 1 ? legend(data.series.map((series) => series.name)) : null,
  );
}

export function powers(group) {
  const most = Math.max(1, ...group.counts);
  // Names of more than six bars would cover each other; the last bar always has its own.
  const last = group.limits.length - 1;
  const every = Math.ceil((last + 1) / 6);
  const named = (place) => (last - place) % every === 0;
  return figure(
    group.name,
    `${short(group.mean)} on average`,
    el(
      "div",
      { class: "powers" },
      group.limits.map((limit, place) =>
        el(
          "div",
          { class: "power", title: `${count(group.counts[place])} up to ${count(limit)}` },
          el("span", {}, count(group.counts[place])),
          el("i", { style: { height: `${Math.round((76 * group.counts[place]) / most) + 2}px` } }),
          el("small", {}, named(place) ? `≤ ${short(limit)}` : "\u00a0"),
        ),
      ),
    ),
  );
}

export function lines(series, { title = "", about = "", unit = "" } = {}) {
  const longest = Math.max(1, ...series.map((one) => one.x[one.x.length - 1] ?? 0));
  const values = series.flatMap((one) => one.y);
  const high = Math.max(1.02, ...values);
  const low = Math.min(0.98, ...values);
  const room = (high - low) * 0.08;
  const x = (value) => LEFT + ((WIDTH - LEFT - 8) * value) / longest;
  const y = (value) =>
    TOP + ((HEIGHT - BOTTOM - TOP) * (high + room - value)) / (high - low + 2 * room);
  const drawn = series.map((one) => {
    const points = one.x
      .map((step, place) => `${x(step).toFixed(1)},${y(one.y[place]).toFixed(1)}`)
      .join(" ");
    if (one.x.length === 1)
      return svg("circle", { cx: x(one.x[0]), cy: y(one.y[0]), r: 3, class: `dot ${one.kind}` });
    return svg("polyline", { points, class: `line ${one.kind}` });
  });
  const ticks = nice(low, high, 4).map((value) => [y(value), value.toFixed(2)]);
  return figure(
    title,
    about,
    frame(xTicks(longest, x, unit), ticks, drawn),
    legend(
      series.map((one) => one.name),
      series.map((one) => one.kind),
    ),
  );
}

export function legend(names, kinds) {
  return el(
    "ul",
    { class: "legend" },
    names.map((name, place) =>
      el("li", {}, el("i", { class: kinds ? kinds[place] : `s${place}` }), name),
    ),
  );
}

export function shares(rows, total) {
  const most = Math.max(1, ...rows.map(([, amount]) => amount));
  return el(
    "table",
    { class: "shares" },
    rows.map(([name, amount]) =>
      el(
        "tr",
        {},
        el("th", {}, name),
        el("td", { class: "num" }, count(amount)),
        el(
          "td",
          { class: "wide" },
          el(
            "div",
            { class: "bar thin" },
            el("i", { style: { width: `${(100 * amount) / most}%` } }),
          ),
        ),
        el("td", { class: "num muted" }, total ? `${((100 * amount) / total).toFixed(1)} %` : ""),
      ),
    ),
  );
}

function figure(title, about, ...drawn) {
  return el(
    "figure",
    { class: "plot" },
    el("figcaption", {}, el("b", {}, title), el("span", {}, about)),
    ...drawn,
  );
}

function frame(bottom, left, ...drawn) {
  return svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "drawn", role: "img" },
    left.map(([at, text]) => [
      svg("line", { class: "grid", x1: LEFT, x2: WIDTH - 8, y1: at, y2: at }),
      svg("text", { class: "tick end", x: LEFT - 7, y: at + 3.5 }, text),
    ]),
    drawn,
    bottom.map(([at, text]) => svg("text", { class: "tick middle", x: at, y: HEIGHT - 8 }, text)),
  );
}

function xTicks(most, x, unit) {
  // Everything on this axis is counted, so only whole numbers are marked.
  const values = nice(0, most, 4).filter((value) => value <= most && Number.isInteger(value));
  return values
    .map((value, place) => [
      x(value),
      place === values.length - 1 && unit ? `${short(value)} ${unit}` : short(value),
    ])
    .map(([at, text]) => [Math.min(at, WIDTH - 8 - text.length * 3), text]);
}

// Bars of whole numbers have their number under the middle.
function wholeTicks(bins, x, unit) {
  const values = nice(0, bins - 1, 5).filter((value) => Number.isInteger(value));
  return values.map((value) => [
    x(value + 0.5),
    unit && value === values[values.length - 1] ? `${value} ${unit}` : String(value),
  ]);
}

function yTicks(most, y) {
  return nice(0, most, 3)
    .filter((value) => value <= most * 1.001 && Number.isInteger(value))
    .map((value) => [y(value), short(value)]);
}

function nice(low, high, wanted) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((one) => one >= rough);
  const values = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-6; value += step)
    values.push(Number(value.toPrecision(12)));
  return values;
}
