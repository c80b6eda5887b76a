// The page: side list, search, theme, keyboard, and the view of the current address.

import { el, replace, setText } from "./dom.js";
import { ask } from "./net.js";
import { above, open } from "./views.js";
import { go, link, parseRoute } from "./route.js";

const THEMES = ["auto", "light", "dark"];
const SIDE_MS = 10000;
const page = { route: null, keys: {}, timer: 0, turn: 0 };

const side = el("nav", { class: "side", "aria-label": "folders" });
const main = el("main", { tabindex: "-1" });
const loading = el("div", { class: "loading" });
const crumbs = el("div", { class: "crumbs" });
const search = el("input", {
  type: "search",
  class: "field",
  placeholder: "Search keys, sources, reasons",
  "aria-label": "search",
  onkeydown: onSearchKey,
});
const toast = el("div", { class: "toast", role: "status" });

function start() {
  dropToken();
  setTheme(localStorage.getItem("theme") ?? "auto");
  document.body.replaceChildren(
    loading,
    el(
      "aside",
      { class: "rail" },
      link(
        { view: "map" },
        { class: "brand" },
        el("img", { src: "static/mark.svg", alt: "", width: 20, height: 20 }),
        "shardmill",
      ),
      side,
      el(
        "div",
        { class: "rail-foot" },
        el(
          "button",
          { class: "ghost", title: "change the theme (t)", onclick: nextTheme },
          "Theme",
        ),
        el("button", { class: "ghost", title: "keyboard (?)", onclick: showHelp }, "Keys"),
      ),
    ),
    el(
      "div",
      { class: "page" },
      el(
        "header",
        { class: "bar-top" },
        crumbs,
        el("div", { class: "searchbox" }, search, el("kbd", {}, "/")),
        el(
          "button",
          { class: "ghost", title: "copy the link to this view (c)", onclick: copyLink },
          "Copy link",
        ),
      ),
      main,
    ),
    toast,
  );
  addEventListener("hashchange", show);
  addEventListener("keydown", onKey);
  show();
  listSide();
  setInterval(() => document.hidden || listSide(), SIDE_MS);
}

async function show({ again = false } = {}) {
  const turn = (page.turn += 1);
  clearTimeout(page.timer);
  const route = parseRoute(location.hash);
  const waiting = setTimeout(() => loading.classList.add("on"), 120);
  let made;
  try {
    made = await open(route, ask);
  } catch (error) {
    made = { title: "shardmill", body: [problem(route, error)], keys: {} };
  }
  clearTimeout(waiting);
  loading.classList.remove("on");
  if (turn !== page.turn) return;
  page.route = route;
  page.keys = made.keys ?? {};
  document.title = `${made.title} · shardmill`;
  drawCrumbs(route, made);
  search.value = route.view === "search" ? (route.params.q ?? "") : "";
  replace(main, made.body);
  main.dataset.view = route.view || "item";
  if (!again) main.scrollTo(0, 0);
  for (const entry of side.querySelectorAll("a"))
    entry.classList.toggle("on", entry.dataset.id === route.id);
  if (made.live) keepAlive(made.live, turn, 600);
}

function keepAlive(live, turn, wait) {
  page.timer = setTimeout(async () => {
    if (turn !== page.turn) return;
    let next;
    try {
      next = document.hidden ? 1500 : await live();
    } catch {
      next = 3000;
    }
    if (turn !== page.turn || next === null) return;
    if (next === "again") {
      await listSide();
      await show({ again: true });
    } else keepAlive(live, turn, next);
  }, wait);
}

async function listSide() {
  try {
    const answer = await ask("map");
    const entry = (node) =>
      link(
        { id: node.id },
        { "data-id": node.id, title: node.name, class: node.id === page.route?.id ? "on" : "" },
        el("i", { class: `state-dot ${node.state}` }),
        el("span", {}, node.name),
        el("small", {}, node.content),
      );
    replace(side, el("h3", {}, answer.root), answer.nodes.map(entry));
  } catch {
    replace(side, el("p", { class: "muted" }, "no answer"));
  }
}

function problem(route, error) {
  return el(
    "div",
    { class: "empty bad" },
    el("b", {}, "This cannot be shown"),
    el("p", {}, error.message),
    link(above(route), { class: "button" }, "Go up"),
  );
}

function drawCrumbs(route, made) {
  const last = route.name || (route.view && route.view !== "map" && !route.id ? route.view : "");
  replace(
    crumbs,
    link({ view: "map" }, {}, "map"),
    route.id && [" / ", link({ id: route.id }, {}, made.page?.name ?? route.id)],
    route.id &&
      route.view && [
        " / ",
        link(
          route.name ? above(route) : route,
          {},
          route.name ? (above(route).view ?? route.view) : route.view,
        ),
      ],
    last && [" / ", el("span", {}, last)],
  );
}

function onSearchKey(event) {
  if (event.key === "Enter") go({ view: "search", params: { q: search.value.trim() } });
  if (event.key === "Escape") search.blur();
  event.stopPropagation();
}

function onKey(event) {
  if (
    event.ctrlKey ||
    event.metaKey ||
    event.altKey ||
    /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)
  )
    return;
  const open = document.querySelector("dialog[open]");
  if (open) return;
  const press = (hint) => main.querySelector(`[data-key="${hint}"]`)?.click();
  const keys = {
    "/": () => search.focus(),
    "?": showHelp,
    t: nextTheme,
    c: copyLink,
    m: () => go({ view: "map" }),
    u: () => go(above(page.route)),
    Escape: () => go(above(page.route)),
    j: () => press("next"),
    k: () => press("previous"),
    ArrowRight: () => press("next"),
    ArrowLeft: () => press("previous"),
    ...page.keys,
  };
  if (/^[1-9]$/.test(event.key)) main.querySelectorAll(".tabs a")[Number(event.key) - 1]?.click();
  else if (keys[event.key] && !(event.target.tagName === "VIDEO")) keys[event.key]();
  else return;
  event.preventDefault();
}

function showHelp() {
  const rows = [
    ["/", "search"],
    ["j  k", "next, previous"],
    ["← →", "documents of a pack; next, previous"],
    ["1 … 9", "tabs"],
    ["u  Esc", "up"],
    ["m", "map"],
    ["c", "copy the link"],
    ["t", "theme"],
  ];
  const box = el(
    "dialog",
    { class: "help" },
    el("h2", {}, "Keyboard"),
    el(
      "table",
      {},
      rows.map(([keys, text]) =>
        el("tr", {}, el("td", {}, el("kbd", {}, keys)), el("td", {}, text)),
      ),
    ),
    el("button", { class: "button", onclick: () => box.close() }, "Close"),
  );
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
}

async function copyLink() {
  const { address } = await ask("share");
  const whole = address + location.hash;
  try {
    await navigator.clipboard.writeText(whole);
    say("Link copied. It works on this machine while the page runs.");
  } catch {
    say(whole);
  }
}

function say(text) {
  setText(toast, text);
  toast.classList.add("on");
  setTimeout(() => toast.classList.remove("on"), 2600);
}

function nextTheme() {
  const now = document.documentElement.dataset.theme ?? "auto";
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
  localStorage.setItem("theme", next);
  setTheme(next);
  say(`Theme: ${next}`);
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
}

// The token has done its work: it is a cookie now, and need not stand in the address.
function dropToken() {
  if (location.search) history.replaceState(null, "", location.pathname + location.hash);
}

start();
