// What waits, by model and tenant.

import { byId, el, empty, keyed, setText } from "./dom.js";
import { count, duration, plural } from "./format.js";

let rows = null;

function table(root) {
  rows = el("tbody");
  root.replaceChildren(el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {},
      el("th", { scope: "col" }, "Model, tenant"), el("th", { scope: "col", class: "number" }, "Waiting"),
      el("th", { scope: "col", class: "number" }, "Oldest"), el("th", { scope: "col", class: "number" }, "Work"))),
    rows)));
}

function make(first) {
  const cells = ["number", "number", "number"].map((name) => el("td", { class: name }));
  const held = el("span", { class: "sub" });
  const waiting = el("span");
  cells[0].append(waiting, held);
  return {
    node: el("tr", {}, el("td", {}, first.model, el("span", { class: "sub" }, first.tenant)), ...cells),
    update(queue) {
      setText(waiting, count(queue.waiting));
      setText(held, queue.held ? `${count(queue.held)} held` : "");
      setText(cells[1], duration(queue.oldest_ms));
      setText(cells[2], duration(queue.predicted_ms));
    },
  };
}

export function showQueues(frame) {
  const root = byId("queues");
  const tenants = new Set(frame.queues.map((queue) => queue.tenant)).size;
  setText(byId("queues-note"), frame.queues.length ? `${count(frame.queued)} calls of ${plural(tenants, "tenant")}` : "");
  if (!frame.queues.length) {
    rows = null;
    root.replaceChildren(empty("Nothing waits."));
    return;
  }
  if (!rows) table(root);
  keyed(rows, frame.queues, (queue) => `${queue.model}\n${queue.tenant}`, make);
}
