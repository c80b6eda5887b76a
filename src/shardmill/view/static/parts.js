// The small parts that every view is made of: chips, facts, pagers, notes, figures.

import { el } from "./dom.js";
import { link } from "./route.js";
import { count } from "./words.js";

const STATES = {
  done: "done",
  running: "running",
  failed: "failed",
  waiting: "not started",
  refused: "refused",
  broken: "broken",
};

export function chip(state) {
  return el("span", { class: `chip ${state}` }, STATES[state] ?? state);
}

export function facts(rows) {
  const shown = rows.filter(
    (row) => row && row[1] !== undefined && row[1] !== null && row[1] !== "",
  );
  return el(
    "dl",
    { class: "facts" },
    shown.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]),
  );
}

export function numbers(rows) {
  return el(
    "div",
    { class: "numbers" },
    rows
      .filter(Boolean)
      .map(([value, name, note]) =>
        el(
          "div",
          { class: "number" },
          el("b", {}, value),
          el("span", {}, name),
          note && el("small", {}, note),
        ),
      ),
  );
}

export function panel(title, ...children) {
  return el("section", { class: "panel" }, title && el("h2", {}, title), ...children);
}

export function note(text, kind = "") {
  return el("p", { class: `note ${kind}` }, text);
}

export function empty(title, text) {
  return el("div", { class: "empty" }, el("b", {}, title), el("p", {}, text));
}

export function bar(share, kind = "") {
  const width = `${(100 * Math.max(0, Math.min(1, share))).toFixed(2)}%`;
  return el("div", { class: `bar ${kind}` }, el("i", { style: { width } }));
}

export function key(text) {
  return el("code", { class: "key", title: text }, text);
}

export function pager(place, { at, step, total, shown, unit }) {
  const to = (number) => ({ ...place, params: { ...place.params, at: Math.max(0, number) } });
  const last = Math.max(0, Math.floor((total - 1) / step) * step);
  const button = (text, number, on, hint) =>
    on
      ? link(to(number), { class: "button", title: hint, "data-key": hint }, text)
      : el("span", { class: "button off" }, text);
  return el(
    "nav",
    { class: "pager", "aria-label": "pages" },
    button("First", 0, at > 0, "first"),
    button("‹", at - step, at > 0, "previous"),
    el(
      "span",
      { class: "where" },
      total
        ? `${count(at)} – ${count(Math.min(total, at + shown) - 1)} of ${count(total)} ${unit}`
        : `no ${unit}`,
    ),
    button("›", at + step, at + step < total, "next"),
    button("Last", last, at < last, "last"),
  );
}

export function foundPager(place, { shown, searched, next, unit }) {
  const onward = { ...place, params: { ...place.params, at: next } };
  return el(
    "nav",
    { class: "pager" },
    el("span", { class: "where" }, `${count(shown)} found in ${count(searched)} ${unit}`),
    next === null ? null : link(onward, { class: "button", "data-key": "next" }, "Continue"),
  );
}

export function steps(place, number, total, unit) {
  const to = (other) => ({ ...place, name: String(other), params: {} });
  const button = (text, other, on, hint) =>
    on
      ? link(to(other), { class: "button", title: `${hint} ${unit}`, "data-key": hint }, text)
      : el("span", { class: "button off" }, text);
  return el(
    "nav",
    { class: "pager", "aria-label": `${unit}s` },
    button("‹", number - 1, number > 0, "previous"),
    el("span", { class: "where" }, `${unit} ${count(number)} of ${count(total)}`),
    button("›", number + 1, number + 1 < total, "next"),
  );
}

export function field(label, value, onchange) {
  return el("input", {
    class: "field",
    type: "search",
    placeholder: label,
    "aria-label": label,
    value,
    onchange: (event) => onchange(event.target.value.trim()),
  });
}
