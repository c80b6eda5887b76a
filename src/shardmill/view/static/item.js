// The frame of an item: its title, its tabs, and the spec that makes it.

import { el } from "./dom.js";
import { chip, panel } from "./parts.js";
import { link } from "./route.js";
import { count, size } from "./words.js";

const TABS = {
  samples: ["overview", "samples", "units", "rejected", "spec"],
  tokens: ["overview", "rows", "units", "rejected", "spec"],
  packs: ["packs", "overview", "units", "rejected", "spec"],
  codes: ["codes", "overview", "units", "rejected", "spec"],
  lengths: ["overview", "units", "rejected", "spec"],
  export: ["packs", "overview", "units", "rejected", "spec"],
  other: ["overview", "units", "rejected", "spec"],
  plan: ["overview", "packs"],
};

export function tabsOf(page) {
  return page.kind === "lengths" ? ["overview"] : (TABS[page.content] ?? TABS.other);
}

export function frameOf(page, current) {
  const tabs = tabsOf(page);
  return el(
    "header",
    { class: "head" },
    el(
      "div",
      { class: "title" },
      el("h1", {}, page.name),
      el("span", { class: "verb" }, page.kind === "stage" ? page.verb : page.kind),
      page.state !== "done" && chip(page.state),
    ),
    el(
      "nav",
      { class: "tabs", "aria-label": "views" },
      tabs.map((tab) =>
        link(
          { id: page.id, view: tab },
          { class: tab === current ? "on" : "", "aria-current": tab === current && "page" },
          page.content === "export" && tab === "packs" ? "records" : tab,
        ),
      ),
    ),
  );
}

export async function specView({ page }) {
  return {
    title: `${page.name}: spec`,
    body: [
      panel(
        "What makes this folder",
        el(
          "p",
          { class: "muted" },
          "The configuration of the stage. A receipt is valid if it has the digest of this spec and of its unit.",
        ),
        el("pre", { class: "spec" }, JSON.stringify(page.spec ?? {}, null, 2)),
      ),
      page.roles?.length &&
        panel(
          "Files",
          el(
            "table",
            { class: "plain" },
            el(
              "tr",
              {},
              ["role", "files", "size"].map((name) =>
                el("th", { class: name === "role" ? "" : "num" }, name),
              ),
            ),
            page.roles.map((role) =>
              el(
                "tr",
                {},
                el("td", {}, el("code", {}, role.role)),
                el("td", { class: "num" }, count(role.files)),
                el("td", { class: "num" }, size(role.bytes)),
              ),
            ),
          ),
        ),
    ],
  };
}
