// Code pictures beside their originals, the strangest first.

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
        empty("No pictures", "No shard of codes is done yet, or its samples have no pictures."),
      ],
    };
  return {
    title: `${page.name}: codes`,
    body: [
      numbers([
        [
          count(answer.total),
          "pictures looked at",
          answer.shards < answer.of
            ? `in ${count(answer.shards)} of ${count(answer.of)} shards`
            : null,
        ],
        [
          percent(1 - answer.dead / Math.max(1, answer.num_codes)),
          "of the codebook used",
          `${count(answer.dead)} of ${count(answer.num_codes)} codes never occur`,
        ],
      ]),
      el(
        "div",
        { class: "toolbar" },
        pager(route, {
          at,
          step: STEP,
          total: answer.total,
          shown: answer.pictures.length,
          unit: "pictures",
        }),
        el("span", { class: "muted" }, "the strangest first: rare codes, or few different ones"),
      ),
      !answer.decodes && note("Start with --reconstruct to see what the codes decode to."),
      el(
        "div",
        { class: "codewall" },
        answer.pictures.map((picture) => pictureOf(route.id, picture, answer.decodes)),
      ),
    ],
  };
}

function pictureOf(id, picture, decodes) {
  const at = picture.sample_at;
  const original = at
    ? link(
        { id: at.id, view: "sample", name: String(at.number) },
        { class: "shot" },
        thumb(at.id, at.number, picture.medium, "image"),
      )
    : el("span", { class: "shot nopicture" }, "original not here");
  const odd = picture.score > 4;
  return el(
    "figure",
    { class: `codes ${odd ? "odd" : ""}` },
    el("div", { class: "pair" }, original, grid(picture)),
    decodes &&
      el("img", {
        class: "back",
        alt: "the picture as it was encoded, and as its codes give it back",
        loading: "lazy",
        src: decoded({ id, key: picture.key, medium: picture.medium }),
      }),
    el(
      "figcaption",
      {},
      key(picture.key),
      el(
        "span",
        {},
        `${picture.bits.toFixed(1)} bits a code, ${count(picture.distinct)} of ${count(picture.height * picture.width)} differ`,
      ),
      odd && el("span", { class: "tag warn" }, "outlier"),
    ),
  );
}

// Each code gets a colour of its own, so that equal codes look equal; a flat sky shows as one.
function grid(picture) {
  const canvas = el("canvas", {
    width: picture.width,
    height: picture.height,
    class: "shot",
    role: "img",
    "aria-label": `${picture.width} × ${picture.height} codes`,
  });
  const paint = canvas.getContext("2d");
  const pixels = paint.createImageData(picture.width, picture.height);
  picture.codes.flat().forEach((code, place) => {
    const mixed = Math.imul(code + 1, 0x9e3779b1) >>> 0;
    const level = (shift) => 70 + (((mixed >>> shift) & 255) * 150) / 255;
    pixels.data.set([level(0), level(9), level(19), 255], place * 4);
  });
  paint.putImageData(pixels, 0, 0);
  return canvas;
}
