// The pipeline as a map: raw files on the left, each stage right of what it was made from. While
// stages run, the cards are changed in place, so that nothing jumps.

import { el, setText, svg } from "./dom.js";
import { chip, empty, numbers } from "./parts.js";
import { go, link } from "./route.js";
import { count, duration, plural, short, size } from "./words.js";

const CARD = { least: 150, most: 196, height: 96, gapX: 36, gapY: 16 };
const RAW = { width: 120, height: 36 };

export async function mapView({ ask }) {
  const first = await ask("map");
  if (!first.nodes.length) {
    return {
      title: first.root,
      body: [
        empty(
          "Nothing here yet",
          `${first.path} holds no shardmill folder. Run a stage into it, or start the page on another folder. The page looks again every few seconds.`,
        ),
      ],
      live: async () => "again",
    };
  }
  if (first.nodes[0].id === ".") go({ id: "." }, { instead: true }); // a stage by itself
  const layout = layOut(first);
  const cards = new Map(first.nodes.map((node) => [node.id, card(node)]));
  const head = el("div", {});
  const update = (answer) => {
    head.replaceChildren(summary(answer));
    for (const node of answer.nodes) cards.get(node.id)?.update(node);
  };
  update(first);
  const board = el(
    "div",
    { class: "board", style: { width: `${layout.width}px`, height: `${layout.height}px` } },
    edges(layout),
    [...layout.raw].map(([path, at]) => rawCard(at, path)),
    first.nodes.map((node) => {
      const at = layout.nodes.get(node.id);
      const { element } = cards.get(node.id);
      element.style.setProperty("left", `${at.x}px`);
      element.style.setProperty("top", `${at.y}px`);
      element.style.setProperty("width", `${at.width}px`);
      return element;
    }),
  );
  const sameItems = (answer) =>
    answer.nodes.length === first.nodes.length && answer.nodes.every((node) => cards.has(node.id));
  return {
    title: first.root,
    body: [head, el("div", { class: "board-scroll" }, board)],
    live: async () => {
      const answer = await ask("map");
      if (!sameItems(answer)) return "again";
      update(answer);
      return answer.nodes.some((node) => node.state === "running") ? 1000 : 3000;
    },
  };
}

function summary(answer) {
  const stages = answer.nodes.filter((node) => node.kind === "stage");
  const sum = (name) => stages.reduce((total, node) => total + (node[name] ?? 0), 0);
  const made = new Set(answer.edges.map(([, target]) => target));
  const read = stages
    .filter((node) => !made.has(node.id))
    .reduce((total, node) => total + (node.in ?? 0), 0);
  const running = stages.filter((node) => node.state === "running").length;
  const failed = sum("failed");
  return numbers([
    [
      count(stages.length),
      stages.length === 1 ? "stage" : "stages",
      running
        ? `${count(running)} running`
        : failed
          ? `${plural(failed, "unit")} failed`
          : "none running",
    ],
    [short(read), "samples read", plural(answer.raw.length, "raw input")],
    [short(sum("skipped")), "skipped", "each with a reason"],
    [size(sum("bytes")), "on disk", plural(sum("shards"), "shard")],
  ]);
}

function card(node) {
  const state = el("span", { class: "state" });
  const fill = el("i", {});
  const line = el("div", { class: "line" });
  const foot = el("div", { class: "foot" });
  const element = link(
    { id: node.id },
    { class: `card node of-${node.content}`, "data-id": node.id },
    el("div", { class: "top" }, el("b", { title: node.name }, node.name), state),
    line,
    el("div", { class: "bar" }, fill),
    foot,
  );
  const update = (now) => {
    state.replaceChildren(
      now.state === "done"
        ? el("span", { class: "verb" }, now.kind === "stage" ? now.verb : now.kind)
        : chip(now.state),
    );
    element.classList.toggle("running", now.state === "running");
    const share = now.units ? now.done / now.units : now.state === "done" ? 1 : 0;
    fill.style.setProperty("width", `${(100 * share).toFixed(2)}%`);
    fill.className = now.state;
    setText(line, headline(now));
    setText(foot, footnote(now));
  };
  update(node);
  return { element, update };
}

function headline(node) {
  if (node.problem) return node.problem;
  if (node.kind === "plan")
    return `${plural(node.packs, "pack")} of ${count(node.capacity)} tokens`;
  const unit =
    { tokens: "row", packs: "document", codes: "sample", lengths: "row" }[node.content] ?? "sample";
  return plural(node.kept ?? 0, unit);
}

function footnote(node) {
  if (node.state === "running") {
    const rate = node.rate
      ? `${short(node.rate)}/s`
      : `${count(node.done)} of ${plural(node.units, "unit")}`;
    return node.seconds_left === null || node.seconds_left === undefined
      ? rate
      : `${rate}, ${duration(node.seconds_left)} left`;
  }
  if (node.kind !== "stage") return node.kind === "plan" ? "pack plan" : "length table";
  if (node.failed) return `${plural(node.failed, "unit")} failed`;
  if (node.state === "waiting") return `${count(node.done)} of ${plural(node.units, "unit")}`;
  return [node.skipped ? `${count(node.skipped)} skipped` : null, size(node.bytes ?? 0)]
    .filter(Boolean)
    .join(" · ");
}

function rawCard(at, path) {
  return el(
    "div",
    {
      class: "raw",
      title: path,
      style: {
        left: `${at.x}px`,
        top: `${at.y}px`,
        width: `${RAW.width}px`,
        height: `${RAW.height}px`,
      },
    },
    el("span", {}, at.name),
  );
}

// Columns by the longest path from a raw file; inside a column by the mean height of the inputs.
function layOut(answer) {
  const depth = new Map();
  const from = new Map(answer.nodes.map((node) => [node.id, []]));
  for (const [source, target] of answer.edges) from.get(target)?.push(source);
  const depthOf = (id, seen = new Set()) => {
    if (depth.has(id)) return depth.get(id);
    if (seen.has(id)) return 0;
    seen.add(id);
    const found = Math.max(-1, ...from.get(id).map((source) => depthOf(source, seen))) + 1;
    depth.set(id, found);
    return found;
  };
  answer.nodes.forEach((node) => depthOf(node.id));
  const columns = [];
  for (const node of answer.nodes) (columns[depth.get(node.id)] ??= []).push(node);
  const left = answer.raw.length ? RAW.width + CARD.gapX : 0;
  const width = Math.max(
    CARD.least,
    Math.min(CARD.most, Math.floor((room() - left + CARD.gapX) / columns.length) - CARD.gapX),
  );
  const nodes = new Map();
  const rawOf = new Map(answer.raw.flatMap((one) => one.feeds.map((id) => [id, one.path])));
  const weight = (node) => {
    const feeding = from
      .get(node.id)
      .map((source) => nodes.get(source)?.y)
      .filter((y) => y !== undefined);
    return feeding.length ? feeding.reduce((a, b) => a + b, 0) / feeding.length : Infinity;
  };
  const feeds = new Set(answer.edges.map(([source]) => source));
  columns.forEach((column, number) => {
    const used = new Set(
      column.filter((node) => feeds.has(node.id)).map((node) => rawOf.get(node.id)),
    );
    const rank = (node) => [
      weight(node),
      used.has(rawOf.get(node.id)) ? 0 : 1,
      rawOf.get(node.id) ?? "",
      feeds.has(node.id) ? 0 : 1,
      node.name,
    ];
    column.sort((a, b) => compare(rank(a), rank(b)));
    column.forEach((node, row) =>
      nodes.set(node.id, {
        x: left + number * (width + CARD.gapX),
        y: row * (CARD.height + CARD.gapY),
        width,
        height: CARD.height,
      }),
    );
  });
  const raw = placeRaw(answer, nodes);
  const bottom = (list) => Math.max(0, ...list.map((at) => at.y + at.height));
  return {
    nodes,
    raw,
    edges: answer.edges,
    feeds: answer.raw,
    width: left + columns.length * (width + CARD.gapX) - CARD.gapX,
    height: Math.max(bottom([...nodes.values()]), bottom([...raw.values()])) + 4,
  };
}

function room() {
  const main = document.querySelector("main");
  return (main?.clientWidth ?? 1060) - 60;
}

function compare(a, b) {
  const at = a.findIndex((value, place) => value !== b[place]);
  return at < 0 ? 0 : a[at] < b[at] ? -1 : 1;
}

function placeRaw(answer, nodes) {
  const raw = new Map();
  let free = 0;
  const wanted = (one) =>
    Math.min(...one.feeds.map((id) => nodes.get(id)?.y ?? 0)) + (CARD.height - RAW.height) / 2;
  for (const one of [...answer.raw].sort((a, b) => wanted(a) - wanted(b)).slice(0, 24)) {
    const y = Math.max(free, wanted(one));
    raw.set(one.path, { x: 0, y, height: RAW.height, name: one.name });
    free = y + RAW.height + 10;
  }
  return raw;
}

function edges(layout) {
  const curve = (a, b) => {
    const middle = (a.x + b.x) / 2;
    return svg("path", {
      class: "edge",
      d: `M${a.x},${a.y} C${middle},${a.y} ${middle},${b.y} ${b.x},${b.y}`,
    });
  };
  const right = (at, width = at.width) => ({ x: at.x + width, y: at.y + at.height / 2 });
  const leftSide = (at) => ({ x: at.x, y: at.y + at.height / 2 });
  const drawn = layout.edges
    .filter(([a, b]) => layout.nodes.has(a) && layout.nodes.has(b))
    .map(([a, b]) => curve(right(layout.nodes.get(a)), leftSide(layout.nodes.get(b))));
  for (const one of layout.feeds) {
    const at = layout.raw.get(one.path);
    if (at)
      drawn.push(
        ...one.feeds.map((id) => curve(right(at, RAW.width), leftSide(layout.nodes.get(id)))),
      );
  }
  return svg("svg", { class: "edges", width: layout.width, height: layout.height }, drawn);
}
