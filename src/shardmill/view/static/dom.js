// Elements from plain values. Text is always text: nothing here parses markup, so a caption that
// looks like a tag stays a caption.

const SVG = "http://www.w3.org/2000/svg";

export function el(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function svg(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

export function replace(parent, ...children) {
  parent.replaceChildren(...children.flat(9).filter(isShown).map(asNode));
  return parent;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) setProp(node, name, value);
  node.append(...children.flat(9).filter(isShown).map(asNode));
  return node;
}

function setProp(node, name, value) {
  if (value === undefined || value === null || value === false) return;
  if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
  else if (name === "style")
    for (const [key, text] of Object.entries(value)) node.style.setProperty(key, text);
  else if (name === "value" || name === "checked") node[name] = value;
  else node.setAttribute(name, value === true ? "" : value);
}

function isShown(child) {
  return child !== undefined && child !== null && child !== false;
}

function asNode(child) {
  return child instanceof Node ? child : document.createTextNode(String(child));
}
