// Packs: a list of strips, and one pack in full with the selected document.

import { el } from "./dom.js";
import { empty, key, note, numbers, pager, panel, steps } from "./parts.js";
import { go, link } from "./route.js";
import { maskFigure, miniStrip } from "./packfigures.js";
import { strip } from "./strip.js";
import { highlighted, tokenLegend, lineage } from "./tokens.js";
import { count, percent, plural } from "./words.js";

const STEP = 24;
const PATIENCE_MS = 250;
const MAX_CHOICES = 16;

export async function packsView({ ask, route, page }) {
  const at = Number(route.params.at ?? 0) || 0;
  const answer = await ask("packs", { id: route.id, at, count: STEP });
  return {
    title: `${page.name}: packs`,
    body: [
      el(
        "div",
        { class: "toolbar" },
        pager(route, {
          at,
          step: STEP,
          total: answer.total,
          shown: answer.packs.length,
          unit: page.content === "export" ? "records" : "packs",
        }),
        el(
          "ul",
          { class: "legend" },
          el("li", {}, el("i", { class: "sign doc d0" }), "documents, in six alternating colours"),
          el("li", {}, el("i", { class: "sign visual" }), "share of visual tokens"),
          el("li", {}, el("i", { class: "sign padding" }), "padding"),
        ),
      ),
      answer.packs.length
        ? el(
            "div",
            { class: "packlist" },
            answer.packs.map((pack) =>
              link(
                { id: route.id, view: "pack", name: String(pack.number) },
                { class: "packrow" },
                el("span", { class: "num" }, count(pack.number)),
                miniStrip(pack),
                el("span", { class: "num" }, percent(pack.tokens / Math.max(1, pack.size))),
                el("span", { class: "muted num" }, plural(pack.lengths.length, "document")),
              ),
            ),
          )
        : empty("No packs", "No unit is done yet."),
    ],
  };
}

export async function packView({ ask, route, page }) {
  const pack = await ask("pack", { id: route.id, n: route.name });
  const chosen = Math.min(pack.documents.length - 1, Number(route.params.doc ?? 0) || 0);
  const figure = el("div", {});
  const detail = el("div", { class: "stack" }, el("section", { class: "panel chosen" }));
  let current = chosen;
  const draw = async (number) => {
    current = number;
    figure.replaceChildren(strip(pack, { selected: number, onselect: select }));
    if (number < 0) return;
    const shown = await documentPanel(ask, pack, number, select);
    if (current === number) detail.replaceChildren(shown);
  };
  const select = (number) => {
    go(
      { id: route.id, view: "pack", name: route.name, params: { doc: number } },
      { quietly: true },
    );
    return draw(number);
  };
  // The first tokenizer takes a moment to load: the strip does not wait for it.
  await Promise.race([draw(chosen), new Promise((done) => setTimeout(done, PATIENCE_MS))]);
  const lossTokens = pack.documents.reduce((sum, one) => sum + (one.loss_tokens ?? 0), 0);
  const visual = pack.visual.reduce((a, b) => a + b, 0);
  const unit = page.content === "export" ? "record" : "pack";
  return {
    title: `${page.name}: ${unit} ${pack.number}`,
    body: [
      el(
        "div",
        { class: "subhead" },
        el("h2", {}, `${unit === "pack" ? "Pack" : "Record"} ${count(pack.number)}`),
        steps({ id: route.id, view: "pack" }, pack.number, pack.total, unit),
      ),
      numbers([
        [
          percent(pack.tokens / Math.max(1, pack.size)),
          "filled",
          `${count(pack.tokens)} of ${count(pack.size)}`,
        ],
        [count(pack.documents.length), pack.documents.length === 1 ? "document" : "documents"],
        [percent(visual / Math.max(1, pack.tokens)), "visual", plural(visual, "token")],
        pack.documents[0]?.loss_tokens !== null && [
          percent(lossTokens / Math.max(1, pack.tokens)),
          "in the loss",
          plural(lossTokens, "token"),
        ],
        [count(pack.padding), "padding"],
      ]),
      figure,
      detail,
    ],
    keys: {
      ArrowRight: () => select(Math.min(pack.documents.length - 1, current + 1)),
      ArrowLeft: () => select(Math.max(0, current - 1)),
    },
  };
}

async function documentPanel(ask, pack, number, select) {
  const document = pack.documents[number];
  const tokens = await tokensOf(ask, document, pack.starts[number]);
  return el(
    "section",
    { class: `panel chosen d${number % 6}` },
    documentHead(pack, number, select),
    lineage(document),
    el("div", { class: "split narrow" }, el("div", {}, tokens), maskFigure(pack)),
  );
}

function documentHead(pack, number, select) {
  const start = pack.starts[number];
  const end = start + pack.padded[number] - 1;
  const choose = (document, other) =>
    el(
      "button",
      {
        class: `choice d${other % 6} ${other === number ? "on" : ""}`,
        title: document.key,
        onclick: () => select(other),
      },
      el("i", {}),
      String(other),
    );
  return el(
    "div",
    { class: "subhead" },
    el("h2", {}, key(pack.documents[number].key)),
    el("span", { class: "muted" }, `document ${number}, positions ${count(start)} – ${count(end)}`),
    pack.documents.length <= MAX_CHOICES &&
      el("div", { class: "choices" }, pack.documents.map(choose)),
  );
}

async function tokensOf(ask, document, firstPosition) {
  const at = document.tokens_at;
  if (document.text) return el("p", { class: "said" }, document.text);
  if (document.runs) return highlightedRow(document, document.sample_at, firstPosition);
  if (!at && document.loss_tokens === null)
    return note("This plan was made from lengths: tokens are computed during training.");
  if (!at) return note("The token shards that this pack was made from are not in this folder.");
  try {
    const row = await ask("row", { id: at.id, n: at.number });
    return highlightedRow(row, document.sample_at, firstPosition);
  } catch (error) {
    return note(error.message, "bad");
  }
}

function highlightedRow(row, sample_at, firstPosition) {
  return [
    tokenLegend(),
    row.undecoded && note(`Shown as ids: ${row.undecoded}`),
    highlighted({ ...row, sample_at }, { firstPosition }),
  ];
}
