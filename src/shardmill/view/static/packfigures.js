// Small figures of a pack: one line in a list, and its attention mask.

import { el, svg } from "./dom.js";
import { count } from "./words.js";

export function miniStrip(pack) {
  const share = (number) => `${((100 * number) / Math.max(1, pack.size)).toFixed(3)}%`;
  return el(
    "div",
    { class: "ministrip" },
    pack.lengths.map((length, number) => {
      const visual = pack.visual[number];
      return el(
        "span",
        {
          class: `doc d${number % 6}`,
          style: { width: share(pack.padded[number]) },
          title: `${count(length)} tokens, ${count(visual)} visual`,
        },
        visual > 0 &&
          el("i", { style: { width: `${((100 * visual) / Math.max(1, length)).toFixed(1)}%` } }),
      );
    }),
  );
}

export function maskFigure(pack) {
  const side = 168;
  const scale = side / Math.max(1, pack.size);
  const blocks = pack.starts.map((start, number) => {
    const from = start * scale;
    const to = (start + pack.padded[number]) * scale;
    return svg(
      "path",
      { class: `doc d${number % 6}`, d: `M${from},${from} L${from},${to} L${to},${to} Z` },
      svg(
        "title",
        {},
        `document ${number}: its tokens attend to earlier tokens of this document only`,
      ),
    );
  });
  return el(
    "figure",
    { class: "mask" },
    svg(
      "svg",
      { viewBox: `-1 -1 ${side + 2} ${side + 2}`, role: "img" },
      svg("rect", { class: "track", x: 0, y: 0, width: side, height: side }),
      blocks,
    ),
    el("figcaption", {}, "Attention mask: attention stays within documents"),
  );
}
