// Building and updating the page. Text is only ever set as text, so nothing in it becomes markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function byId(id) {
  return document.getElementById(id);
}

// Writes only what differs: a selection, or a screen reader, is not disturbed each second.
export function setText(node, text) {
  const wanted = String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

export function setData(node, name, value) {
  if (value === null || value === undefined) delete node.dataset[name];
  else if (node.dataset[name] !== value) node.dataset[name] = value;
}

// Makes the children of `parent` one for each item, in order. Nodes of items that stay are kept,
// and with them the focus. `make(item)` returns {node, update(item)}.
export function keyed(parent, items, keyOf, make) {
  const old = parent.parts ?? new Map();
  const parts = new Map();
  for (const item of items) {
    const key = keyOf(item);
    const part = old.get(key) ?? make(item);
    part.update(item);
    parts.set(key, part);
  }
  for (const [key, part] of old) if (!parts.has(key)) part.node.remove();
  let before = parent.firstChild;
  for (const { node } of parts.values()) {
    if (node === before) before = before.nextSibling;
    else parent.insertBefore(node, before);
  }
  parent.parts = parts;
}

export function bar() {
  const inner = el("i");
  const node = el("div", { class: "bar", "aria-hidden": "true" }, inner);
  return {
    node,
    set(share, tone = null) {
      inner.style.width = `${Math.round(Math.min(Math.max(share, 0), 1) * 1000) / 10}%`;
      setData(node, "tone", tone);
    },
  };
}

export function empty(text) {
  return el("p", { class: "empty" }, text);
}
