// A plan: lengths, fill, visual tokens, the cost of steps and how long ranks wait.

import { el } from "./dom.js";
import { facts, note, numbers, panel } from "./parts.js";
import { histogram, lines } from "./plots.js";
import { link } from "./route.js";
import { count, percent, plural, short } from "./words.js";

const WORLDS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

export async function planView({ ask, route, page }) {
  const worlds = WORLDS.filter((size) => size <= Math.max(1, page.packs));
  const world = Number(route.params.world) || Math.min(8, worlds[worlds.length - 1]);
  const top = numbers([
    [count(page.packs), "packs", `of ${count(page.capacity)} tokens`],
    [
      count(page.packed),
      "samples packed",
      page.dropped ? `${count(page.dropped)} left out` : "none left out",
    ],
    [
      page.lower_bound ? (page.packs / page.lower_bound).toFixed(4) : "–",
      "× the lower bound",
      `${count(page.lower_bound)} at best`,
    ],
  ]);
  let plots;
  try {
    plots = await ask("plots", { id: route.id, world });
  } catch (error) {
    return {
      title: page.name,
      body: [el("div", { class: "stack" }, top, note(`No plots: ${error.message}.`), about(page))],
    };
  }
  const { plan } = plots;
  const tokens = plan.sources.reduce((sum, one) => sum + one.num_tokens, 0);
  return {
    title: page.name,
    body: [
      el(
        "div",
        { class: "stack" },
        top,
        panel(
          "Packs",
          el(
            "div",
            { class: "plots" },
            histogram(plan.fill, { title: "Pack fill", unit: "%" }),
            histogram(plan.documents, { title: "Documents per pack" }),
            plan.visual.max > 0 &&
              histogram(plan.visual, { title: "Visual tokens per pack", unit: "tokens" }),
          ),
        ),
        panel(
          "Steps",
          el(
            "div",
            { class: "toolbar" },
            el("span", { class: "muted" }, "Data-parallel ranks:"),
            el(
              "div",
              { class: "choices" },
              worlds.map((size) =>
                link(
                  { id: route.id, view: "overview", params: { world: size } },
                  { class: size === plan.world ? "choice on" : "choice" },
                  String(size),
                ),
              ),
            ),
          ),
          el(
            "div",
            { class: "plots" },
            lines(
              [
                {
                  name: "slowest rank, shuffled",
                  kind: "before",
                  x: plan.steps.shuffled.step,
                  y: plan.steps.shuffled.max,
                },
                {
                  name: "slowest rank, planned",
                  kind: "after",
                  x: plan.steps.planned.step,
                  y: plan.steps.planned.max,
                },
                {
                  name: "mean of ranks, planned",
                  kind: "mean",
                  x: plan.steps.planned.step,
                  y: plan.steps.planned.mean,
                },
              ],
              {
                title: "Cost of each step",
                about: `${plan.steps.in_seconds ? "in seconds" : "relative to the mean pack"}, ${plural(plan.steps.num_steps, "step")}`,
                unit: "steps",
              },
            ),
            stragglers(plan),
          ),
        ),
        panel(
          "Lengths",
          el(
            "div",
            { class: "plots" },
            histogram(plots.lengths, { title: "Tokens per sample", unit: "tokens" }),
            plots.visual.max > 0 &&
              histogram(plots.visual, { title: "Visual tokens per sample", unit: "tokens" }),
          ),
        ),
        panel("Sources", sources(plan.sources, tokens)),
        about(page),
      ),
    ],
  };
}

function stragglers(plan) {
  return el(
    "figure",
    { class: "plot" },
    el(
      "figcaption",
      {},
      el("b", {}, "Straggler factor"),
      el("span", {}, `slowest over mean rank, ${plural(plan.world, "rank")}`),
    ),
    el(
      "table",
      { class: "plain waits" },
      el(
        "tr",
        {},
        el("th", {}, "cost"),
        el("th", { class: "num" }, "shuffled"),
        el("th", { class: "num" }, "planned"),
        el("th", { class: "num" }, "saved"),
      ),
      plan.stragglers.map((one) =>
        el(
          "tr",
          {},
          el("td", {}, one.cost),
          el("td", { class: "num muted" }, one.shuffled.toFixed(3)),
          el("td", { class: "num strong" }, one.planned.toFixed(3)),
          el(
            "td",
            { class: "num good" },
            one.planned < one.shuffled ? percent(1 - one.planned / one.shuffled) : "–",
          ),
        ),
      ),
    ),
    el("p", { class: "muted" }, "1.000: all ranks of a step finish at the same time."),
  );
}

function sources(rows, total) {
  return el(
    "table",
    { class: "plain" },
    el(
      "tr",
      {},
      el("th", {}, "source"),
      ["samples", "tokens", "share", "visual"].map((name) => el("th", { class: "num" }, name)),
    ),
    rows.map((one) =>
      el(
        "tr",
        {},
        el("td", {}, one.name),
        el("td", { class: "num" }, count(one.num_packed)),
        el("td", { class: "num" }, short(one.num_tokens)),
        el("td", { class: "num" }, percent(one.num_tokens / Math.max(1, total))),
        el("td", { class: "num" }, percent(one.num_visual / Math.max(1, one.num_tokens))),
      ),
    ),
  );
}

function about(page) {
  return panel(
    "How it was planned",
    facts([
      ["method", page.why],
      ["seed", String(page.seed)],
      ["alignment", String(page.alignment)],
      ["text cut from", page.cut ? plural(page.cut, "sample") : null],
      ["made from", page.data && link({ id: page.data }, {}, page.data)],
      ["path", el("code", {}, page.path)],
    ]),
  );
}
