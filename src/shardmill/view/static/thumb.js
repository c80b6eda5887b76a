// A thumbnail of a medium; a box with its kind where none can be made.

import { el } from "./dom.js";
import { media } from "./net.js";

export function thumb(id, number, name, kind, width = 320) {
  const source =
    kind === "video"
      ? { id, n: number, name, ms: 500, w: width }
      : { id, n: number, name, w: width };
  const image = el("img", { src: media(source), alt: "", loading: "lazy", decoding: "async" });
  image.addEventListener("error", () =>
    image.replaceWith(el("span", { class: "no-image" }, kind)),
  );
  return image;
}
