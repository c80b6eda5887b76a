// The report: the same views on one page, from the answers in the file.

import { el } from "./dom.js";
import { ask, carry } from "./net.js";
import { empty } from "./parts.js";
import { open } from "./views.js";

async function write() {
  const bundle = JSON.parse(document.getElementById("bundle").textContent);
  carry(bundle);
  document.title = `${bundle.title} · shardmill report`;
  const main = el(
    "main",
    {},
    el(
      "header",
      { class: "cover" },
      el("h1", {}, bundle.title),
      el(
        "p",
        { class: "muted" },
        "Made by shardmill from the receipts, indexes and plans of this folder.",
      ),
    ),
  );
  document.body.className = "report";
  document.body.append(main);
  for (const section of bundle.sections) {
    const route = {
      view: section.view,
      id: section.id ?? "",
      name: section.name ?? "",
      params: {},
    };
    const made = await open(route, ask).catch((error) => ({
      body: [empty("Not in this report", error.message)],
    }));
    main.append(el("section", { class: `sheet ${section.view}` }, made.body));
  }
  document.body.dataset.ready = "yes";
}

write();
