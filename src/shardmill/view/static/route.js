// Where we are, as the part of the address behind '#': every view has its link.
//
//   #/                         the map
//   #/item/tokens/row/12       view "row" of item "tokens", number 12
//   #/search?q=cat             a search

import { el } from "./dom.js";
import { isReport } from "./net.js";

export function parseRoute(hash) {
  const [path, query] = split(hash.replace(/^#/, ""), "?");
  const parts = path
    .split("/")
    .filter((part) => part !== "")
    .map(decode);
  const params = Object.fromEntries(new URLSearchParams(query));
  if (parts[0] === "item" && parts[1])
    return { view: parts[2] ?? "", id: parts[1], name: parts[3] ?? "", params };
  return { view: parts[0] === "search" ? "search" : "map", id: "", name: "", params };
}

export function toHash({ view = "", id = "", name = "", params = {} }) {
  const parts = id
    ? ["item", id, view, name === 0 ? "0" : name]
    : view === "search"
      ? ["search"]
      : [];
  while (parts.length && parts[parts.length - 1] === "") parts.pop();
  const path = `#/${parts.map((part) => encodeURIComponent(part)).join("/")}`;
  const given = Object.entries(params).filter(
    ([, value]) => value !== "" && value !== undefined && value !== null && value !== 0,
  );
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

export function link(place, props, ...children) {
  if (isReport()) return el("span", { ...props, href: undefined }, ...children);
  return el("a", { ...props, href: toHash(place) }, ...children);
}

// `quietly` changes the address only; `instead` also shows it, and takes the place of this view.
export function go(place, { quietly = false, instead = false } = {}) {
  if (isReport()) return;
  const hash = toHash(place);
  if (hash === location.hash) return;
  if (instead) location.replace(hash);
  else if (quietly) history.replaceState(null, "", hash);
  else location.hash = hash;
}

function split(text, mark) {
  const at = text.indexOf(mark);
  return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + 1)];
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
