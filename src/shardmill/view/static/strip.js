// A pack as a strip: images in place, documents with their borders, modality, loss mask, positions
// that restart, and padding.

import { el, svg } from "./dom.js";
import { media } from "./net.js";
import { count, short } from "./words.js";

const WIDTH = 1000;
const LANES = {
  images: [0, 74],
  documents: [80, 26],
  modality: [110, 12],
  loss: [126, 12],
  positions: [144, 34],
  axis: [184, 14],
};
const HEIGHT = 200;
const MIN_IMAGE = 16;
let numStrips = 0;

export function strip(pack, { selected = -1, onselect = null } = {}) {
  numStrips += 1;
  const hatch = `hatch${numStrips}`;
  const scale = WIDTH / Math.max(1, pack.size);
  const x = (place) => place * scale;
  const drawn = pack.documents.map((document, number) =>
    documentOf(pack, document, number, x, { selected, onselect }),
  );
  const used = pack.starts.length
    ? pack.starts[pack.starts.length - 1] + pack.padded[pack.padded.length - 1]
    : 0;
  return el(
    "figure",
    { class: "strip" },
    svg(
      "svg",
      {
        viewBox: `-64 0 ${WIDTH + 66} ${HEIGHT}`,
        role: "img",
        "aria-label": "the pack from its first position to its last",
      },
      svg(
        "defs",
        {},
        svg(
          "pattern",
          {
            id: hatch,
            width: 6,
            height: 6,
            patternUnits: "userSpaceOnUse",
            patternTransform: "rotate(45)",
          },
          svg("line", { class: "hatch", x1: 0, y1: 0, x2: 0, y2: 6 }),
        ),
      ),
      Object.entries(LANES)
        .filter(([name]) => name !== "axis")
        .map(([name, [top, height]]) => [
          svg("text", { class: "lane", x: -8, y: top + height / 2 + 3.5 }, name),
          name !== "images" &&
            svg("rect", { class: "track", x: 0, y: top, width: WIDTH, height, rx: 3 }),
        ]),
      drawn,
      used < pack.size && padding(used, pack.size, x, hatch),
      axis(pack.size, x),
    ),
  );
}

function documentOf(pack, document, number, x, { selected, onselect }) {
  const start = pack.starts[number];
  const left = x(start);
  const width = Math.max(0.5, x(pack.padded[number]));
  const [top, height] = LANES.documents;
  const choose = onselect && {
    onclick: () => onselect(number),
    class: `document d${number % 6} ${number === selected ? "on" : ""} able`,
  };
  const label =
    width > 30
      ? svg(
          "text",
          { class: "name", x: left + 6, y: top + 17 },
          shorten(document.key ?? "", number, width),
        )
      : null;
  return svg(
    "g",
    choose ?? { class: `document d${number % 6}` },
    svg("rect", { class: "hit", x: left, y: 0, width, height: LANES.axis[0] }),
    svg(
      "rect",
      { class: "body", x: left, y: top, width: Math.max(0.5, width - 1), height, rx: 2 },
      svg("title", {}, `${document.key}: ${count(document.tokens)} tokens`),
    ),
    label,
    textLane(pack, start, number, x),
    document.media.map((medium) => mediumOf(document, medium, start, x)),
    document.media.length === 0 && document.visual > 0 && visualLane(document, start, x),
    document.loss.map(([from, length]) =>
      svg(
        "rect",
        {
          class: "loss",
          x: x(start + from),
          y: LANES.loss[0],
          width: Math.max(0.6, x(length)),
          height: LANES.loss[1],
        },
        svg("title", {}, `${count(length)} tokens in the loss from position ${count(start + from)}`),
      ),
    ),
    positionsOf(start, pack.padded[number], pack, x),
    number > 0 &&
      svg("line", {
        class: "border",
        x1: left,
        x2: left,
        y1: LANES.documents[0] - 2,
        y2: LANES.axis[0] - 4,
      }),
  );
}

function textLane(pack, start, number, x) {
  return svg("rect", {
    class: "text",
    x: x(start),
    y: LANES.modality[0],
    width: Math.max(0.5, x(pack.lengths[number])),
    height: LANES.modality[1],
  });
}

function visualLane(document, start, x) {
  return svg(
    "rect",
    {
      class: "image",
      x: x(start),
      y: LANES.modality[0],
      width: x(document.visual),
      height: LANES.modality[1],
    },
    svg("title", {}, `${count(document.visual)} visual tokens, somewhere in it`),
  );
}

function mediumOf(document, medium, start, x) {
  const left = x(start + medium.position);
  const width = Math.max(0.8, x(medium.tokens));
  const [top, height] = LANES.images;
  const at = document.media_at ?? document.sample_at;
  const source =
    at && medium.kind !== "audio" && width >= MIN_IMAGE
      ? media(
          medium.kind === "video"
            ? { id: at.id, n: at.number, name: medium.name, ms: 500, w: 320 }
            : { id: at.id, n: at.number, name: medium.name, w: 320 },
        )
      : "";
  return [
    svg(
      "rect",
      { class: medium.kind, x: left, y: LANES.modality[0], width, height: LANES.modality[1] },
      svg(
        "title",
        {},
        `${medium.kind} ${medium.name}: ${count(medium.tokens)} tokens from position ${count(start + medium.position)}`,
      ),
    ),
    svg("path", {
      class: "stem",
      d: `M${left},${LANES.documents[0]} L${left},${top + height} L${left + width},${top + height} L${left + width},${LANES.documents[0]}`,
    }),
    svg("rect", { class: `frame ${medium.kind}`, x: left, y: top, width, height, rx: 2 }),
    source &&
      svg(
        "svg",
        {
          x: left + 1,
          y: top + 1,
          width: Math.max(1, width - 2),
          height: height - 2,
          overflow: "hidden",
        },
        svg("image", {
          href: source,
          width: "100%",
          height: "100%",
          preserveAspectRatio: width > 2 * height ? "xMinYMid meet" : "xMidYMid slice",
        }),
      ),
    medium.kind === "video" &&
      width > 24 &&
      svg("text", { class: "play", x: left + 6, y: top + 16 }, "▶"),
  ];
}

function positionsOf(start, length, pack, x) {
  const [top, height] = LANES.positions;
  const longest = Math.max(1, ...pack.padded);
  const peak = top + height - 2 - ((height - 6) * length) / longest;
  const foot = top + height - 2;
  return svg(
    "path",
    {
      class: "positions",
      d: `M${x(start)},${foot} L${x(start + length)},${peak} L${x(start + length)},${foot}`,
    },
    svg("title", {}, `positions 0 to ${count(length - 1)}`),
  );
}

function padding(from, to, x, hatch) {
  const [top] = LANES.documents;
  const bottom = LANES.positions[0] + LANES.positions[1];
  const width = x(to) - x(from);
  return svg(
    "g",
    { class: "padding" },
    svg(
      "rect",
      { x: x(from), y: top, width, height: bottom - top, fill: `url(#${hatch})`, rx: 2 },
      svg("title", {}, `${count(to - from)} positions of padding`),
    ),
    width > 54 &&
      svg(
        "text",
        { class: "lane middle", x: x(from) + width / 2, y: LANES.images[0] + 44 },
        `${count(to - from)} padding`,
      ),
  );
}

function axis(size, x) {
  const step = niceStep(size / 8);
  const ticks = [];
  for (let place = 0; place <= size; place += step) ticks.push(place);
  if (size - ticks[ticks.length - 1] > step / 2) ticks.push(size);
  else ticks[ticks.length - 1] = size;
  return ticks.map((place) =>
    svg(
      "text",
      {
        class: `tick ${place === 0 ? "" : place === size ? "end" : "middle"}`,
        x: x(place),
        y: LANES.axis[0] + 10,
      },
      size < 20000 ? count(place) : short(place),
    ),
  );
}

function niceStep(rough) {
  let step = 1;
  while (step < rough) step *= 2;
  return step;
}

function shorten(text, number, width) {
  const room = Math.floor((width - 12) / 6.2);
  if (text.length <= room) return text;
  return room > 6 ? `…${text.slice(-(room - 1))}` : String(number);
}
