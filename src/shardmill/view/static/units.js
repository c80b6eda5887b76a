// Units and their counts: the table of all, one in full, and rejected samples with their reasons.

import { el } from "./dom.js";
import { chip, empty, facts, field, key, note, numbers, pager, panel } from "./parts.js";
import { go, link } from "./route.js";
import { count, plural, size } from "./words.js";

const STEP = 50;

export async function unitsView({ ask, route, page }) {
  const at = Number(route.params.at ?? 0) || 0;
  const answer = await ask("units", { id: route.id, at, count: STEP });
  if (!answer.total)
    return {
      title: page.name,
      body: [empty("No units", "This folder has no units.jsonl.")],
    };
  const header = ["unit", "state", "in", "kept", "skipped", "shards", "size"];
  return {
    title: `${page.name}: units`,
    body: [
      pager(route, {
        at,
        step: STEP,
        total: answer.total,
        shown: answer.units.length,
        unit: "units",
      }),
      el(
        "table",
        { class: "grid" },
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            header.map((name, place) => el("th", { class: place > 1 ? "num" : "" }, name)),
          ),
        ),
        el(
          "tbody",
          {},
          answer.units.map((unit) =>
            el(
              "tr",
              { class: "row" },
              el(
                "td",
                {},
                link(
                  { id: route.id, view: "unit", name: unit.name },
                  {},
                  el("code", {}, unit.name),
                ),
              ),
              el("td", {}, chip(unit.state)),
              [unit.in, unit.kept].map((number) => el("td", { class: "num" }, count(number))),
              el("td", { class: unit.skipped ? "num warn" : "num muted" }, count(unit.skipped)),
              el("td", { class: "num" }, count(unit.shards)),
              el("td", { class: "num" }, unit.bytes ? size(unit.bytes) : "–"),
            ),
          ),
        ),
      ),
    ],
    live: page.state === "running" ? async () => "again" : null,
  };
}

export async function unitView({ ask, route, page }) {
  const unit = await ask("unit", { id: route.id, name: route.name });
  const first = unit.files[0];
  const where = { samples: "samples", tokens: "rows" }[page.content];
  return {
    title: `${page.name}: unit ${unit.name}`,
    body: [
      el(
        "div",
        { class: "subhead" },
        el("h2", {}, "Unit ", el("code", {}, unit.name)),
        chip(unit.state),
        where &&
          first &&
          link(
            { id: route.id, view: where, params: { at: first.first } },
            { class: "button" },
            `See its ${where}`,
          ),
      ),
      numbers([
        [count(unit.in), "in"],
        [count(unit.kept), "kept"],
        [count(unit.skipped), "skipped"],
        [size(unit.bytes), "written"],
      ]),
      unit.failure &&
        panel(
          "Why it failed",
          note(unit.failure.message, "bad"),
          el("pre", {}, unit.failure.traceback),
        ),
      unit.files.length > 0 &&
        panel(
          "Files of the receipt",
          el(
            "table",
            { class: "plain" },
            unit.files.flatMap((shard) =>
              shard.files.map((file) =>
                el(
                  "tr",
                  {},
                  el("td", {}, el("code", {}, file.path)),
                  el("td", { class: "num" }, size(file.bytes)),
                  el("td", { class: "muted" }, el("code", {}, file.checksum)),
                ),
              ),
            ),
          ),
        ),
      unit.rejects.length > 0 && panel("Rejected", rejectTable(route.id, unit.rejects)),
      panel(
        "Input",
        facts(
          Object.entries(unit.input)
            .map(([name, value]) => [
              name,
              el("code", {}, typeof value === "string" ? value : JSON.stringify(value)),
            ])
            .concat([["receipt digest", el("code", {}, unit.digest)]]),
        ),
      ),
    ],
  };
}

export async function rejectedView({ ask, route, page }) {
  const { reason = "", q = "" } = route.params;
  const body = el("div", { class: "stack" });
  const reasons = Object.entries(page.skipped_by ?? {}).sort((a, b) => b[1] - a[1]);
  const chips = [
    ["", "all reasons", page.skipped],
    ...reasons.map(([name, amount]) => [name, name, amount]),
  ];
  const filter = (other) => ({ id: route.id, view: "rejected", params: { reason, q, ...other } });
  const answer = await ask("rejects", { id: route.id, reason, q });
  const list = el(
    "tbody",
    {},
    answer.found.map((reject) => rejectRow(route.id, reject)),
  );
  const more = el("div", { class: "center" });
  const offer = (cursor) =>
    more.replaceChildren(
      ...(cursor
        ? [el("button", { class: "button", onclick: () => next(cursor) }, "Show more")]
        : []),
    );
  const next = async (cursor) => {
    const found = await ask("rejects", {
      id: route.id,
      reason,
      q,
      file: cursor[0],
      line: cursor[1],
    });
    list.append(...found.found.map((reject) => rejectRow(route.id, reject)));
    offer(found.cursor);
  };
  offer(answer.cursor);
  body.append(
    el(
      "div",
      { class: "toolbar" },
      el(
        "div",
        { class: "choices" },
        chips.map(([name, label, amount]) =>
          link(
            filter({ reason: name }),
            { class: name === reason ? "choice on" : "choice" },
            label,
            el("small", {}, count(amount)),
          ),
        ),
      ),
      field("Key or detail", q, (value) => go(filter({ q: value }))),
    ),
    answer.found.length
      ? el(
          "table",
          { class: "grid" },
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              ["key", "reason", "detail", "unit"].map((name) => el("th", {}, name)),
            ),
          ),
          list,
        )
      : empty(
          page.skipped ? "No match" : "Nothing was rejected",
          page.skipped
            ? "No rejected sample has this text in its key or detail."
            : `All ${plural(page.in ?? 0, "sample")} were kept.`,
        ),
    more,
  );
  return { title: `${page.name}: rejected`, body: [body] };
}

function rejectTable(id, rejects) {
  return el(
    "table",
    { class: "grid" },
    el(
      "tbody",
      {},
      rejects.map((reject) => rejectRow(id, reject)),
    ),
  );
}

function rejectRow(id, reject) {
  return el(
    "tr",
    {},
    el("td", {}, key(reject.key)),
    el("td", {}, el("span", { class: reject.filtered ? "tag" : "tag warn" }, reject.reason)),
    el("td", { class: "detail" }, reject.detail),
    reject.unit !== undefined &&
      el("td", {}, link({ id, view: "unit", name: reject.unit }, {}, el("code", {}, reject.unit))),
  );
}
