// Samples as a grid of cards, filtered by source and key.

import { el } from "./dom.js";
import { empty, field, foundPager, key, pager } from "./parts.js";
import { go, link } from "./route.js";
import { thumb } from "./thumb.js";

const STEP = 48;

export async function samplesView({ ask, route, page }) {
  const { q = "", source = "" } = route.params;
  const at = Number(route.params.at ?? 0) || 0;
  const filtered = q !== "" || source !== "";
  let answer = await ask("samples", { id: route.id, at, count: STEP, q, source });
  const cards = [...answer.cards];
  while (filtered && answer.next !== null && cards.length < STEP) {
    answer = await ask("samples", {
      id: route.id,
      at: answer.next,
      count: STEP - cards.length,
      q,
      source,
    });
    cards.push(...answer.cards);
  }
  const shown = cards.length;
  const filter = (other) => go({ id: route.id, view: "samples", params: { q, source, ...other } });
  const onward = filtered
    ? foundPager(route, {
        shown,
        searched: answer.searched - at,
        next: answer.next,
        unit: "samples",
      })
    : pager(route, { at, step: STEP, total: answer.total, shown, unit: "samples" });
  return {
    title: `${page.name}: samples`,
    body: [
      el(
        "div",
        { class: "toolbar" },
        onward,
        sourceChoice(page, source, (value) => filter({ source: value })),
        field("Key contains …", q, (value) => filter({ q: value })),
      ),
      cards.length
        ? el(
            "div",
            { class: "sample-grid" },
            cards.map((card) => cardOf(route.id, card)),
          )
        : empty("No samples", filtered ? "No sample matches this filter." : "No shard is done yet."),
    ],
    live: page.state === "running" && !cards.length ? async () => "again" : null,
  };
}

function cardOf(id, card) {
  const [name, kind] = Object.entries(card.kinds)[0] ?? [];
  const more = Object.keys(card.kinds).length - 1;
  return link(
    { id, view: "sample", name: String(card.number) },
    { class: "card sample" },
    name && kind !== "audio"
      ? el(
          "div",
          { class: "preview" },
          thumb(id, card.number, name, kind),
          kind === "video" && el("span", { class: "badge" }, "▶ video"),
          more > 0 && el("span", { class: "badge" }, `+${more}`),
        )
      : null,
    el("p", { class: name ? "caption" : "caption long" }, card.problem ?? card.text),
    el("div", { class: "foot" }, key(card.key || `sample ${card.number}`)),
  );
}

function sourceChoice(page, source, onchange) {
  const group = (page.stats ?? []).find((one) => one.name === "source");
  if (!group || group.rows.length < 2) return null;
  return el(
    "select",
    { class: "field", "aria-label": "source", onchange: (event) => onchange(event.target.value) },
    el("option", { value: "" }, "all sources"),
    group.rows.map(([name]) => {
      const one = el("option", { value: name }, name);
      one.selected = name === source;
      return one;
    }),
  );
}
