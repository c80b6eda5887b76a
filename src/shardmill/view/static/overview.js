// The overview of a folder: counts, statistics, what is running and what failed.

import { el } from "./dom.js";
import { bar, facts, key, note, numbers, panel } from "./parts.js";
import { histogram, powers, shares } from "./plots.js";
import { link } from "./route.js";
import { count, duration, percent, plural, short, size } from "./words.js";

export async function overviewView({ ask, route, page }) {
  const plots = await plotsOf(ask, page);
  const body = el("div", { class: "stack" });
  const draw = (now) =>
    body.replaceChildren(
      ...[
        topNumbers(now),
        running(now),
        sampleCounts(now),
        plots,
        statistics(now),
        failures(now),
        madeFrom(now),
      ]
        .flat()
        .filter(Boolean),
    );
  draw(page);
  return {
    title: page.name,
    body: [body],
    live:
      page.state === "done"
        ? null
        : async () => {
            const now = await ask("item", { id: route.id });
            if (now.state !== page.state) return "again";
            draw(now);
            return 1000;
          },
  };
}

function topNumbers(page) {
  const share = page.units ? page.done / page.units : 1;
  return numbers([
    [
      short(page.kept ?? 0),
      page.content === "packs" ? "documents" : page.content === "tokens" ? "rows" : "samples kept",
      page.in !== page.kept && `of ${count(page.in)} in`,
    ],
    [
      percent(page.in ? page.skipped / page.in : 0),
      "skipped",
      `${count(page.skipped)} with a reason`,
    ],
    [size(page.bytes ?? 0), "on disk", plural(page.shards ?? 0, "shard")],
    page.state !== "done" && [
      percent(share, 0),
      "of the units",
      `${count(page.done)} of ${count(page.units)}`,
    ],
    page.rate && [
      `${short(page.rate)}/s`,
      "samples",
      page.seconds_left !== null && `${duration(page.seconds_left)} left`,
    ],
  ]);
}

function running(page) {
  if (page.state === "done") return null;
  const list = page.running ?? [];
  return panel(
    "Progress",
    bar(page.units ? page.done / page.units : 0, page.state),
    list.length > 0 &&
      el(
        "table",
        { class: "plain" },
        list
          .slice(0, 12)
          .map((unit) =>
            el(
              "tr",
              {},
              el("td", {}, el("code", {}, unit.unit)),
              el("td", { class: "num" }, duration(unit.seconds)),
              el("td", { class: "muted" }, unit.host),
            ),
          ),
      ),
  );
}

function sampleCounts(page) {
  if (!page.in) return null;
  const reasons = Object.entries(page.skipped_by ?? {}).sort((a, b) => b[1] - a[1]);
  const part = (amount, kind, title) =>
    amount > 0 && el("i", { class: kind, title, style: { "flex-grow": String(amount) } });
  return panel(
    "Counts",
    el(
      "div",
      {
        class: "counts",
        role: "img",
        "aria-label": `${count(page.kept)} kept of ${count(page.in)}`,
      },
      part(page.kept, "kept", `${count(page.kept)} kept`),
      reasons.map(([reason, amount], place) =>
        part(amount, `skip s${place % 8}`, `${count(amount)} × ${reason}`),
      ),
    ),
    el(
      "table",
      { class: "plain ledger" },
      ledgerLine("kept", el("span", { class: "dot kept" }), "kept", page.kept, page.in),
      reasons.map(([reason, amount], place) =>
        ledgerLine(
          reason,
          el("span", { class: `dot skip s${place % 8}` }),
          link({ id: page.id, view: "rejected", params: { reason } }, {}, reason),
          amount,
          page.in,
          page.examples?.[reason]?.[0],
        ),
      ),
      el(
        "tr",
        { class: "sum" },
        el("td", {}),
        el("td", {}, "in"),
        el("td", { class: "num" }, count(page.in)),
        el("td", {}),
        el("td", {}),
      ),
    ),
  );
}

function ledgerLine(name, dot, label, amount, total, example) {
  return el(
    "tr",
    {},
    el("td", { class: "tight" }, dot),
    el("td", {}, label),
    el("td", { class: "num" }, count(amount)),
    el("td", { class: "num muted" }, percent(amount / total)),
    el("td", { class: "muted clip" }, example ? [key(example.key), " ", example.detail] : ""),
  );
}

async function plotsOf(ask, page) {
  if (!["tokens", "lengths"].includes(page.content)) return null;
  try {
    const plots = await ask("plots", { id: page.id });
    const some =
      plots.shards < plots.of
        ? note(`From ${count(plots.shards)} of ${count(plots.of)} shards, evenly spread.`)
        : null;
    return panel(
      "Lengths",
      el(
        "div",
        { class: "plots" },
        histogram(plots.lengths, { title: "Tokens per row", unit: "tokens" }),
        plots.visual.max > 0 &&
          histogram(plots.visual, { title: "Visual tokens per row", unit: "tokens" }),
      ),
      some,
    );
  } catch (error) {
    return note(error.message, "bad");
  }
}

function statistics(page) {
  const groups = page.stats ?? [];
  const single = groups.find((group) => group.kind === "facts");
  const bars = groups.filter((group) => group.kind === "bars");
  const tables = groups.filter((group) => group.kind === "counts");
  if (!groups.length) return null;
  return panel(
    "Statistics",
    single && facts(single.rows.map(([name, amount]) => [name, count(amount)])),
    bars.length > 0 && el("div", { class: "plots" }, bars.map(powers)),
    tables.length > 0 &&
      el(
        "div",
        { class: "plots" },
        tables.map((table) =>
          el(
            "div",
            { class: "plot" },
            el("h3", {}, table.name),
            shares(
              table.rows.slice(0, 10),
              ["samples", "source"].includes(table.name) ? page.kept : 0,
            ),
          ),
        ),
      ),
  );
}

function failures(page) {
  if (!page.failures?.length) return null;
  return panel(
    "Failed units",
    note("Run the command again: it retries only these units.", "bad"),
    page.failures.map((failure) =>
      el(
        "details",
        {},
        el(
          "summary",
          {},
          link({ id: page.id, view: "unit", name: failure.unit }, {}, el("code", {}, failure.unit)),
          " ",
          failure.message,
        ),
        el("pre", {}, failure.tail),
      ),
    ),
  );
}

function madeFrom(page) {
  const to = (ids) => ids.map((id, place) => [place ? ", " : "", link({ id }, {}, id)]);
  return panel(
    "Inputs and outputs",
    facts([
      [
        "made from",
        page.inputs?.length
          ? to(page.inputs)
          : page.raw?.length
            ? page.raw.slice(0, 6).map((path) => el("code", { class: "path" }, path))
            : null,
      ],
      ["read by", page.feeds?.length ? to(page.feeds) : null],
      ["path", page.path && el("code", {}, page.path)],
      page.slow?.some((unit) => unit.seconds >= 1)
        ? [
            "slowest units",
            page.slow.map((unit, place) => [
              place ? ", " : "",
              link({ id: page.id, view: "unit", name: unit.unit }, {}, unit.unit),
              ` ${duration(unit.seconds)}`,
            ]),
          ]
        : null,
    ]),
  );
}
