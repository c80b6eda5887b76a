// Tokens as text: each one visible, coloured by modality and by whether it is in the loss.

import { el } from "./dom.js";
import { key } from "./parts.js";
import { link } from "./route.js";
import { thumb } from "./thumb.js";
import { count } from "./words.js";

export function highlighted(row, { firstPosition = 0 } = {}) {
  return el(
    "div",
    { class: "tokens" },
    row.runs.map((run) =>
      ["text", "control"].includes(run.kind)
        ? textRun(run, firstPosition)
        : mediaRun(run, row, firstPosition),
    ),
    row.cut > 0 && el("em", { class: "muted" }, ` … ${count(row.cut)} more tokens`),
  );
}

export function tokenLegend() {
  const sign = (kind, text) => el("li", {}, el("i", { class: `sign ${kind}` }), text);
  return el(
    "ul",
    { class: "legend" },
    sign("in-loss", "in the loss"),
    sign("text", "not in the loss"),
    sign("control", "control token"),
    sign("image", "image"),
    sign("video", "video"),
  );
}

export function lineage(row, ids) {
  const at = row.sample_at;
  return el(
    "nav",
    { class: "lineage", "aria-label": "where it comes from" },
    row.tokens_at && [
      link(
        { id: row.tokens_at.id, view: "row", name: String(row.tokens_at.number) },
        { class: "lineage-link" },
        el("small", {}, "tokens"),
        `row ${count(row.tokens_at.number)} of ${row.tokens_at.name}`,
      ),
      arrow(),
    ],
    at
      ? link(
          { id: at.id, view: "sample", name: String(at.number) },
          { class: "lineage-link" },
          el("small", {}, "sample"),
          key(row.key),
        )
      : el(
          "span",
          { class: "lineage-link off" },
          el("small", {}, "sample"),
          ids?.why ?? "not in this folder",
        ),
    row.origin && [
      arrow(),
      el(
        "span",
        { class: "lineage-link" },
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

function textRun(run, firstPosition) {
  const kind = `run ${run.kind}${run.in_loss ? " in-loss" : ""}`;
  return el(
    "span",
    { class: kind },
    run.texts.map((text, number) =>
      el(
        "span",
        {
          class: number % 2 ? "tok odd" : "tok",
          title: `position ${firstPosition + run.start + number}, id ${run.ids[number]}${run.in_loss ? ", in the loss" : ""}`,
        },
        text,
      ),
    ),
  );
}

function mediaRun(run, row, firstPosition) {
  const at = row.sample_at;
  const grid = run.grid.filter((side) => side > 0).join(" × ");
  const preview = at
    ? link(
        { id: at.id, view: "sample", name: String(at.number) },
        { class: "preview" },
        thumb(at.id, at.number, run.name, run.kind),
      )
    : el("span", { class: "preview no-image" }, run.kind);
  return el(
    "span",
    {
      class: `block ${run.kind}${run.in_loss ? " in-loss" : ""}`,
      title: `positions ${firstPosition + run.start} to ${firstPosition + run.start + run.tokens - 1}`,
    },
    preview,
    el("span", {}, `${count(run.tokens)} tokens`, el("small", {}, `${run.kind} ${grid}`)),
  );
}
