// Rows of tokens: the list, and one row with its tokens highlighted.

import { el } from "./dom.js";
import { empty, facts, field, foundPager, key, note, numbers, pager, panel, steps } from "./parts.js";
import { go, link } from "./route.js";
import { strip } from "./strip.js";
import { highlighted, tokenLegend, lineage } from "./tokens.js";
import { count, percent } from "./words.js";

const STEP = 40;

export async function rowsView({ ask, route, page }) {
  const { q = "", source = "" } = route.params;
  const at = Number(route.params.at ?? 0) || 0;
  const answer = await ask("rows", { id: route.id, at, count: STEP, q, source });
  const shown = answer.rows.length;
  const most = Math.max(1, ...answer.rows.map((row) => row.tokens));
  const filter = (other) => go({ id: route.id, view: "rows", params: { q, source, ...other } });
  const onward =
    q || source
      ? foundPager(route, { shown, searched: answer.searched - at, next: answer.next, unit: "rows" })
      : pager(route, { at, step: STEP, total: answer.total, shown, unit: "rows" });
  return {
    title: `${page.name}: rows`,
    body: [
      el(
        "div",
        { class: "toolbar" },
        onward,
        field("Key contains …", q, (value) => filter({ q: value })),
      ),
      shown
        ? el(
            "table",
            { class: "grid" },
            el(
              "thead",
              {},
              el(
                "tr",
                {},
                el("th", {}, "key"),
                el("th", { class: "num" }, "tokens"),
                el("th", { class: "num" }, "visual"),
                el("th", { class: "num" }, "in the loss"),
                el("th", { class: "wide" }, ""),
                el("th", {}, "source"),
              ),
            ),
            el(
              "tbody",
              {},
              answer.rows.map((row) =>
                el(
                  "tr",
                  { class: "row" },
                  el(
                    "td",
                    {},
                    link({ id: route.id, view: "row", name: String(row.number) }, {}, key(row.key)),
                  ),
                  [row.tokens, row.visual, row.loss_tokens].map((number) =>
                    el("td", { class: "num" }, count(number)),
                  ),
                  el("td", { class: "wide" }, miniRow(row, most)),
                  el("td", { class: "muted" }, row.source),
                ),
              ),
            ),
          )
        : empty("No rows", "No row matches, or no shard is done yet."),
    ],
  };
}

export async function rowView({ ask, route, page }) {
  const row = await ask("row", { id: route.id, n: route.name });
  const pack = {
    size: row.tokens,
    starts: [0],
    lengths: [row.tokens],
    padded: [row.tokens],
    documents: [row],
  };
  return {
    title: `${page.name}: ${row.key}`,
    body: [
      el(
        "div",
        { class: "subhead" },
        el("h2", {}, key(row.key)),
        steps({ id: route.id, view: "row" }, row.number, row.total, "row"),
      ),
      numbers([
        [count(row.tokens), "tokens"],
        [count(row.visual), "visual", percent(row.visual / Math.max(1, row.tokens))],
        [count(row.loss_tokens), "in the loss", percent(row.loss_tokens / Math.max(1, row.tokens))],
      ]),
      lineage(row),
      strip(pack, { selected: -1 }),
      panel(
        null,
        tokenLegend(),
        row.undecoded && note(`Shown as ids: ${row.undecoded}`),
        highlighted(row),
      ),
      panel(
        "Stored",
        facts([
          ["shard", el("code", {}, row.shard)],
          ["row in it", count(row.row_in_shard)],
          ["continues the row before", row.continues ? "yes" : null],
        ]),
      ),
    ],
  };
}

function miniRow(row, most) {
  const width = (number) => `${((100 * number) / most).toFixed(2)}%`;
  return el(
    "div",
    { class: "mini", title: `${count(row.tokens)} tokens` },
    el("i", { class: "text", style: { width: width(row.tokens - row.visual) } }),
    el("i", { class: "image", style: { width: width(row.visual) } }),
  );
}
