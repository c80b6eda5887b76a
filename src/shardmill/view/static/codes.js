// VQ codes of images beside the originals, outliers first.

import { el } from "./dom.js";
import { decoded } from "./net.js";
import { empty, key, note, numbers, pager } from "./parts.js";
import { link } from "./route.js";
import { thumb } from "./thumb.js";
import { count, percent } from "./words.js";

const STEP = 24;

export async function codesView({ ask, route, page }) {
  const at = Number(route.params.at ?? 0) || 0;
  const answer = await ask("codes", { id: route.id, at, count: STEP });
  if (!answer.total)
    return {
      title: page.name,
      body: [
        empty("No images", "No shard of codes is done yet, or its samples have no images."),
      ],
    };
  return {
    title: `${page.name}: codes`,
    body: [
      numbers([
        [
          count(answer.total),
          "images looked at",
          answer.shards < answer.of
            ? `in ${count(answer.shards)} of ${count(answer.of)} shards`
            : null,
        ],
        [
          percent(1 - answer.unused / Math.max(1, answer.num_codes)),
          "of the codebook used",
          `${count(answer.unused)} of ${count(answer.num_codes)} codes unused`,
        ],
      ]),
      el(
        "div",
        { class: "toolbar" },
        pager(route, {
          at,
          step: STEP,
          total: answer.total,
          shown: answer.images.length,
          unit: "images",
        }),
        el("span", { class: "muted" }, "outliers first: rare codes, or few different ones"),
      ),
      !answer.decodes && note("Start with --reconstruct to see what the codes decode to."),
      el(
        "div",
        { class: "code-grid" },
        answer.images.map((image) => imageOf(route.id, image, answer.decodes)),
      ),
    ],
  };
}

function imageOf(id, image, decodes) {
  const at = image.sample_at;
  const original = at
    ? link(
        { id: at.id, view: "sample", name: String(at.number) },
        { class: "preview" },
        thumb(at.id, at.number, image.medium, "image"),
      )
    : el("span", { class: "preview no-image" }, "original not in this folder");
  const isOutlier = image.score > 4;
  return el(
    "figure",
    { class: `codes ${isOutlier ? "outlier" : ""}` },
    el("div", { class: "pair" }, original, grid(image)),
    decodes &&
      el("img", {
        class: "back",
        alt: "the image as it was encoded, and as decoded from its codes",
        loading: "lazy",
        src: decoded({ id, key: image.key, medium: image.medium }),
      }),
    el(
      "figcaption",
      {},
      key(image.key),
      el(
        "span",
        {},
        `${image.bits.toFixed(1)} bits per code, ${count(image.distinct)} of ${count(image.height * image.width)} differ`,
      ),
      isOutlier && el("span", { class: "tag warn" }, "outlier"),
    ),
  );
}

// Each code gets a colour of its own, so that equal codes look equal; a flat sky shows as one.
function grid(image) {
  const canvas = el("canvas", {
    width: image.width,
    height: image.height,
    class: "preview",
    role: "img",
    "aria-label": `${image.width} × ${image.height} codes`,
  });
  const drawing = canvas.getContext("2d");
  const pixels = drawing.createImageData(image.width, image.height);
  image.codes.flat().forEach((code, position) => {
    const mixed = Math.imul(code + 1, 0x9e3779b1) >>> 0;
    const level = (shift) => 70 + (((mixed >>> shift) & 255) * 150) / 255;
    pixels.data.set([level(0), level(9), level(19), 255], position * 4);
  });
  drawing.putImageData(pixels, 0, 0);
  return canvas;
}
