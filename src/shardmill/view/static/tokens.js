// Tokens as a person reads them: each one visible, coloured by what it is and whether learned.

import { el } from "./dom.js";
import { key } from "./parts.js";
import { link } from "./route.js";
import { thumb } from "./thumb.js";
import { count } from "./words.js";

export function painted(row, { firstPlace = 0 } = {}) {
  return el(
    "div",
    { class: "tokens" },
    row.runs.map((run) =>
      ["text", "control"].includes(run.kind)
        ? textRun(run, firstPlace)
        : mediaRun(run, row, firstPlace),
    ),
    row.cut > 0 && el("em", { class: "muted" }, ` … ${count(row.cut)} more tokens`),
  );
}

export function tokenLegend() {
  const sign = (kind, text) => el("li", {}, el("i", { class: `sign ${kind}` }), text);
  return el(
    "ul",
    { class: "legend" },
    sign("learned", "learned (carries loss)"),
    sign("text", "not learned"),
    sign("control", "control token"),
    sign("image", "image"),
    sign("video", "video"),
  );
}

export function ways(row, ids) {
  const at = row.sample_at;
  return el(
    "nav",
    { class: "ways", "aria-label": "where it comes from" },
    row.tokens_at && [
      link(
        { id: row.tokens_at.id, view: "row", name: String(row.tokens_at.number) },
        { class: "way" },
        el("small", {}, "tokens"),
        `row ${count(row.tokens_at.number)} of ${row.tokens_at.name}`,
      ),
      arrow(),
    ],
    at
      ? link(
          { id: at.id, view: "sample", name: String(at.number) },
          { class: "way" },
          el("small", {}, "sample"),
          key(row.key),
        )
      : el(
          "span",
          { class: "way off" },
          el("small", {}, "sample"),
          ids?.why ?? "not in this folder",
        ),
    row.origin && [
      arrow(),
      el(
        "span",
        { class: "way" },
        el("small", {}, "source file"),
        el("code", {}, row.origin.path),
        ` row ${row.origin.row}`,
      ),
    ],
  );
}

function arrow() {
  return el("span", { class: "arrow", "aria-hidden": "true" }, "→");
}

function textRun(run, firstPlace) {
  const kind = `run ${run.kind}${run.learned ? " learned" : ""}`;
  return el(
    "span",
    { class: kind },
    run.texts.map((text, place) =>
      el(
        "span",
        {
          class: place % 2 ? "tok odd" : "tok",
          title: `place ${firstPlace + run.start + place}, id ${run.ids[place]}${run.learned ? ", learned" : ""}`,
        },
        text,
      ),
    ),
  );
}

function mediaRun(run, row, firstPlace) {
  const at = row.sample_at;
  const grid = run.grid.filter((side) => side > 0).join(" × ");
  const shot = at
    ? link(
        { id: at.id, view: "sample", name: String(at.number) },
        { class: "shot" },
        thumb(at.id, at.number, run.name, run.kind),
      )
    : el("span", { class: "shot noimage" }, run.kind);
  return el(
    "span",
    {
      class: `block ${run.kind}${run.learned ? " learned" : ""}`,
      title: `places ${firstPlace + run.start} to ${firstPlace + run.start + run.tokens - 1}`,
    },
    shot,
    el("span", {}, `${count(run.tokens)} tokens`, el("small", {}, `${run.kind} ${grid}`)),
  );
}
