// The latest requests, found by how they ended, by workflow or by id.

import { byId, el, empty, keyed, setData, setText } from "./dom.js";
import { openRequest } from "./detail.js";
import { ago, count, duration } from "./format.js";
import { askJson } from "./session.js";

const OUTCOMES = ["open", "completed", "failed", "rejected", "evicted", "abandoned", "cancelled", "invalid"];
const REFRESH_FRAMES = 2;
const LIMIT = 50;
let rows = null;
let nothing = null;
let outcome = null;
let workflow = null;
let frames = 0;

export function outcomeOf(request) {
  if (request.outcome === null) return { word: request.backend ? "Runs" : "Waits", mark: request.backend ? "◐" : "○", tone: null };
  if (request.outcome === "completed") return { word: "Completed", mark: "●", tone: "good" };
  const word = request.outcome[0].toUpperCase() + request.outcome.slice(1);
  const isBad = ["failed", "rejected", "evicted"].includes(request.outcome);
  return { word, mark: isBad ? "▲" : "△", tone: isBad ? "bad" : "warn" };
}

function make(first) {
  const button = el("button", { type: "button", class: "link mono" }, first.client_request_id ?? first.request_id);
  button.addEventListener("click", () => openRequest(first.request_id));
  const pill = el("span", { class: "pill" }, el("span", { class: "mark", "aria-hidden": "true" }), el("span"));
  const reason = el("span", { class: "sub" });
  const cells = ["", "number", "number", "number", "number"].map((name) => el("td", { class: name }));
  const work = el("td", {}, first.stage ?? "–", el("span", { class: "sub" }, first.workflow ?? "no workflow"));
  return {
    node: el("tr", {}, el("td", {}, button, el("span", { class: "sub" }, `${first.model} · ${first.tenant}`)), work, el("td", {}, pill, reason), ...cells),
    update(request) {
      const state = outcomeOf(request);
      setText(pill.firstChild, state.mark);
      setText(pill.lastChild, state.word);
      setData(pill, "tone", state.tone);
      setText(reason, request.reason ?? (request.attempts > 1 ? `attempt ${request.attempts}` : ""));
      const values = [
        request.backend ?? "–", duration(request.queue_ms), duration(request.total_ms ?? request.age_ms),
        `${count(request.predicted_tokens)} → ${request.output_tokens === null ? "…" : count(request.output_tokens)}`,
        ago(request.age_ms),
      ];
      values.forEach((value, index) => setText(cells[index], value));
    },
  };
}

function show(requests) {
  nothing.hidden = requests.length > 0;
  keyed(rows, requests, (request) => request.request_id, make);
}

async function find() {
  const query = new URLSearchParams({ limit: LIMIT });
  if (outcome.value) query.set("outcome", outcome.value);
  if (workflow.value.trim()) query.set("workflow", workflow.value.trim());
  try {
    show((await askJson(`requests?${query}`)).requests);
  } catch {
    // The stream tells of a gateway that is gone, and asks for a key.
  }
}

function isFiltered() {
  return Boolean(outcome.value || workflow.value.trim());
}

export function showRequests(frame) {
  frames += 1;
  if (!isFiltered()) show(frame.requests);
  else if (frames % REFRESH_FRAMES === 0) find();
}

export function filterByWorkflow(id) {
  workflow.value = id;
  find();
  workflow.scrollIntoView({ block: "center" });
  workflow.focus();
}

export function setUpRequests() {
  outcome = el("select", { id: "outcome" }, el("option", { value: "" }, "all"),
    ...OUTCOMES.map((name) => el("option", { value: name }, name)));
  workflow = el("input", { id: "workflow", type: "search", placeholder: "id or name", autocomplete: "off", spellcheck: "false" });
  outcome.addEventListener("change", find);
  workflow.addEventListener("input", find);
  const id = el("input", { type: "search", "aria-label": "Request id", placeholder: "x-request-id", autocomplete: "off", spellcheck: "false", required: true });
  const form = el("form", {}, id, el("button", { type: "submit" }, "Why?"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    openRequest(id.value.trim());
  });
  rows = el("tbody");
  nothing = empty("No requests.");
  byId("requests").append(
    el("div", { class: "filters" },
      el("label", { for: "outcome" }, "Ended as", outcome), el("label", { for: "workflow" }, "Workflow", workflow), form),
    el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {},
        ...["Request", "Stage", "State", "Backend"].map((name) => el("th", { scope: "col" }, name)),
        ...["Queue", "In all", "Tokens, predicted → real", "Came"].map((name) => el("th", { scope: "col", class: "number" }, name)))),
      rows)),
    nothing);
}
