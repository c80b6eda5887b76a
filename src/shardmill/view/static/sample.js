// One sample in full: its turns with their media, where it came from, and what was made from it.

import { el } from "./dom.js";
import { media } from "./net.js";
import { facts, key, note, panel, steps } from "./parts.js";
import { link } from "./route.js";
import { thumb } from "./thumb.js";
import { count, duration, size } from "./words.js";

const NUM_FRAMES = 8;

export async function sampleView({ ask, route, page }) {
  const sample = await ask("sample", { id: route.id, n: route.name });
  const place = { id: route.id, view: "sample" };
  return {
    title: `${page.name}: ${sample.key}`,
    body: [
      el(
        "div",
        { class: "subhead" },
        el("h2", {}, key(sample.key)),
        steps(place, sample.number, sample.total, "sample"),
      ),
      el(
        "div",
        { class: "split" },
        el(
          "article",
          { class: "document" },
          sample.problem
            ? [
                note(sample.problem, "bad"),
                Object.entries(sample.raw).map(([name, text]) => panel(name, el("pre", {}, text))),
                Object.keys(sample.media).map((name) =>
                  medium(route.id, sample, { kind: "image", media: name }),
                ),
              ]
            : turns(route.id, sample),
        ),
        el(
          "aside",
          { class: "about" },
          panel(
            "Source",
            facts([
              ["file", sample.origin && el("code", {}, sample.origin.file ?? sample.origin.path)],
              ["row", sample.origin && String(sample.origin.row)],
              ["source", sample.origin?.source],
            ]),
            !sample.origin && note("This sample does not say where it came from."),
          ),
          panel(
            "Stored",
            facts([
              [
                "shard",
                sample.unit
                  ? link(
                      { id: route.id, view: "unit", name: sample.unit },
                      {},
                      el("code", {}, sample.shard),
                    )
                  : el("code", {}, sample.shard),
              ],
              ["row in shard", count(sample.row_in_shard)],
              ...Object.entries(sample.media).map(([name, one]) => [name, describe(one)]),
            ]),
          ),
          sample.uses?.length > 0 &&
            panel(
              "Made from it",
              el(
                "ul",
                { class: "links" },
                sample.uses.map((use) => el("li", {}, useLink(use))),
              ),
            ),
          Object.keys(sample.extra ?? {}).length > 0 &&
            panel(
              "Other fields",
              facts(
                Object.entries(sample.extra).map(([name, value]) => [
                  name,
                  el("span", { class: "extra" }, value),
                ]),
              ),
            ),
        ),
      ),
    ],
  };
}

function turns(id, sample) {
  const grouped = [];
  for (const segment of sample.segments) {
    const last = grouped[grouped.length - 1];
    if (last && last.role === segment.role && last.turn === segment.turn)
      last.segments.push(segment);
    else grouped.push({ role: segment.role, turn: segment.turn, segments: [segment] });
  }
  const shown = grouped.map((turn) =>
    el(
      "section",
      {
        class: `turn ${["system", "user", "assistant", "tool"].includes(turn.role) ? turn.role : "plain"}`,
      },
      turn.role && el("header", {}, turn.role),
      pieces(id, sample, turn.segments),
    ),
  );
  if (sample.num_segments > sample.segments.length)
    shown.push(
      note(`${count(sample.num_segments - sample.segments.length)} more segments are not shown.`),
    );
  return shown;
}

// Frames of one video are shown on a time line, everything else in document order.
function pieces(id, sample, segments) {
  const shown = [];
  let frames = null;
  for (const segment of segments) {
    if (segment.kind === "image" && segment.time_s) {
      if (!frames) shown.push((frames = el("div", { class: "frames" })));
      frames.append(
        el(
          "figure",
          {},
          thumb(id, sample.number, segment.media, "image", 160),
          el("figcaption", {}, `${segment.time_s[0].toFixed(2)} s`),
        ),
      );
      continue;
    }
    frames = null;
    if (segment.kind === "text")
      shown.push(
        el(
          "p",
          { class: "said" },
          segment.text,
          segment.cut > 0 &&
            el("em", { class: "muted" }, ` … ${count(segment.cut)} more characters`),
        ),
      );
    else shown.push(medium(id, sample, segment));
  }
  return shown;
}

function medium(id, sample, segment) {
  const about = sample.media[segment.media];
  const source = media({ id, n: sample.number, name: segment.media });
  const caption = el(
    "figcaption",
    {},
    el("code", {}, segment.media),
    " ",
    about ? describe(about) : "is missing",
    segment.time_s && ` at ${segment.time_s[0].toFixed(2)} – ${segment.time_s[1].toFixed(2)} s`,
  );
  if (!about) return el("figure", { class: "medium" }, caption);
  if (segment.kind === "video") return video(id, sample, segment, about, caption);
  if (segment.kind === "audio")
    return el(
      "figure",
      { class: "medium" },
      el("audio", { src: source, controls: true, preload: "metadata" }),
      caption,
    );
  const image = el("img", {
    src: about.bytes > 4e6 ? media({ id, n: sample.number, name: segment.media, w: 640 }) : source,
    alt: "",
    width: about.width || undefined,
    height: about.height || undefined,
    loading: "lazy",
  });
  image.addEventListener("error", () =>
    image.replaceWith(el("span", { class: "no-image" }, "this image cannot be shown")),
  );
  return el("figure", { class: "medium" }, image, caption);
}

function video(id, sample, segment, about, caption) {
  const player = el("video", {
    src: media({ id, n: sample.number, name: segment.media }),
    controls: true,
    preload: "metadata",
    width: about.width || undefined,
    height: about.height || undefined,
    playsinline: true,
  });
  const length = about.duration_s || 0;
  const times = Array.from(
    { length: NUM_FRAMES },
    (_, place) => (length * (place + 0.5)) / NUM_FRAMES,
  );
  const frames =
    length > 0 &&
    el(
      "div",
      { class: "frames" },
      times.map((time) => {
        const image = el("img", {
          src: media({
            id,
            n: sample.number,
            name: segment.media,
            ms: Math.round(time * 1000),
            w: 160,
          }),
          alt: "",
          loading: "lazy",
        });
        image.addEventListener("error", () => image.classList.add("blank"));
        return el(
          "button",
          {
            class: "frame",
            title: `go to ${time.toFixed(1)} s`,
            onclick: () => {
              player.currentTime = time;
            },
          },
          image,
          el("span", {}, `${time.toFixed(1)} s`),
        );
      }),
    );
  return el("figure", { class: "medium" }, player, frames, caption);
}

function describe(one) {
  const sides = one.width ? `${one.width} × ${one.height}` : null;
  const length = one.duration_s
    ? `${duration(one.duration_s)}, ${count(one.num_frames)} frames`
    : null;
  return [sides, length, size(one.bytes)].filter(Boolean).join(", ");
}

function useLink(use) {
  if (use.kind === "row")
    return link(
      { id: use.id, view: "row", name: String(use.number) },
      {},
      `row ${count(use.number)} of ${use.id}`,
    );
  if (use.kind === "codes") return link({ id: use.id, view: "codes" }, {}, `codes in ${use.id}`);
  return link(
    { id: use.id, view: "sample", name: String(use.number) },
    {},
    `sample ${count(use.number)} of ${use.id}`,
  );
}
