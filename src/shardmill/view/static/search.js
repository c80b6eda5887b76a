// Search over keys, sources, reasons and names; it continues until there is enough to show.

import { el } from "./dom.js";
import { empty, key } from "./parts.js";
import { link } from "./route.js";
import { count, plural } from "./words.js";

const ENOUGH = 40;
const NAMES = {
  item: "Folders and plans",
  sample: "Samples",
  row: "Rows of tokens",
  source: "Sources",
  reason: "Reasons",
  reject: "Rejected samples",
};

export async function searchView({ ask, route }) {
  const q = route.params.q ?? "";
  const body = el("div", { class: "stack" });
  if (!q)
    return {
      title: "Search",
      body: [
        empty("Search", "Type a key, a part of a key, a source or a reason, and press Enter."),
      ],
    };
  const hits = [];
  let cursor = { item: 0, shard: 0 };
  const draw = (state) =>
    body.replaceChildren(
      el("p", { class: "muted" }, state),
      ...groups(hits),
      ...(hits.length || cursor
        ? []
        : [empty("Nothing found", `No key, source, reason or name contains “${q}”.`)]),
    );
  const goOn = async () => {
    const answer = await ask("search", { q, ...cursor });
    hits.push(...answer.hits);
    cursor = answer.cursor ? { item: answer.cursor[0], shard: answer.cursor[1] } : null;
    draw(
      cursor
        ? `${plural(hits.length, "hit")} so far, searching ${answer.searched} …`
        : `${plural(hits.length, "hit")} in ${count(answer.of)} folders`,
    );
    return cursor && hits.length < ENOUGH ? 0 : null;
  };
  const wait = await goOn();
  return {
    title: `Search: ${q}`,
    body: [el("div", { class: "subhead" }, el("h1", {}, "“", q, "”")), body],
    live: wait === null ? null : goOn,
  };
}

function groups(hits) {
  return Object.entries(NAMES)
    .map(([kind, title]) => {
      const mine = hits.filter((hit) => hit.kind === kind);
      return (
        mine.length > 0 &&
        el(
          "section",
          { class: "panel" },
          el("h2", {}, title),
          el(
            "table",
            { class: "grid" },
            el(
              "tbody",
              {},
              mine.map((hit) =>
                el(
                  "tr",
                  { class: "row" },
                  el(
                    "td",
                    {},
                    link(
                      placeOf(hit),
                      {},
                      ["item", "source", "reason"].includes(kind) ? hit.text : key(hit.text),
                    ),
                  ),
                  el("td", { class: "muted" }, hit.about ?? ""),
                  el("td", { class: "muted end" }, hit.id),
                ),
              ),
            ),
          ),
        )
      );
    })
    .filter(Boolean);
}

function placeOf(hit) {
  if (hit.kind === "item") return { id: hit.id };
  if (hit.kind === "source") return { id: hit.id, view: "samples", params: { source: hit.text } };
  if (hit.kind === "reason") return { id: hit.id, view: "rejected", params: { reason: hit.text } };
  if (hit.kind === "reject") return { id: hit.id, view: "unit", name: hit.unit };
  return { id: hit.id, view: hit.kind, name: String(hit.number) };
}
