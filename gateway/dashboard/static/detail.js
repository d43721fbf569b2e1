// Why did this request go there: one request with every candidate of every attempt.

import { bar, el } from "./dom.js";
import { NONE, count, duration, plural, score } from "./format.js";
import { Refused, askJson } from "./session.js";

const VERDICTS = {
  chosen: "● chosen", full: "■ full", held: "◔ held", worse: "○ worse", tie: "○ tie", next: "○ has room",
  not_drawn: "○ not drawn", tried: "✕ tried", down: "✕ down", draining: "◐ draining",
  breaker_open: "▲ breaker", too_small: "✕ too small", not_offered: "✕ no route", no_model: "✕ no model",
};

function fact(name, value, note = null) {
  return el("div", {}, el("dt", {}, name), el("dd", {}, value, note === null ? null : el("span", { class: "sub" }, note)));
}

function facts(request) {
  const { predicted, actual, deadline } = request;
  const list = [
    fact("State", request.outcome ?? request.state, request.reason),
    fact("Model", request.model, `tenant ${request.tenant}`),
    fact("Workflow", request.workflow ?? NONE, [request.workflow_name, request.stage].filter(Boolean).join(", ") || null),
    fact("Waited", duration(request.queue_ms ?? request.waiting?.since_ms), "in the gateway"),
    fact("Execution", `${duration(predicted.execution_ms)} → ${duration(actual?.execution_ms)}`, "predicted → real"),
    fact("Output tokens", `${count(predicted.output_tokens_mean)} → ${count(actual?.output_tokens)}`,
      predicted.output_tokens_p50 === null ? "predicted → real" : `predicted P50 ${count(predicted.output_tokens_p50)}, P90 ${count(predicted.output_tokens_p90)}`),
    fact("Prompt tokens", count(request.prompt_tokens), `estimated ${count(request.prompt_tokens_estimated)}`),
    fact("First token", duration(actual?.first_token_ms), "after arrival"),
  ];
  if (deadline) {
    const met = { true: "met", false: "missed", null: "open" }[String(deadline.met)];
    list.push(fact("Deadline", `${duration(deadline.in_ms)} after arrival`, met));
    list.push(fact("Budget, laxity", `${duration(deadline.budget_ms)}, ${duration(deadline.laxity_ms)}`, "when it was sent"));
  }
  return el("dl", { class: "facts" }, ...list);
}

function candidateRow(one, worst) {
  const track = bar();
  track.set(one.score === null ? 0 : one.score / worst);
  if (one.verdict !== "chosen") track.node.classList.add("faded");
  return el("tr", { class: one.verdict === "chosen" ? "is-chosen" : null },
    el("td", {}, one.backend),
    el("td", {}, one.score === null ? NONE : el("div", { class: "score" }, el("span", { class: "number" }, score(one.score)), track.node)),
    el("td", {}, el("span", { class: "tag" }, VERDICTS[one.verdict] ?? one.verdict)),
    el("td", { class: "soft" }, one.why));
}

function candidates(list) {
  const worst = Math.max(...list.map((one) => one.score ?? 0), 1e-9);
  return el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, ...["Backend", "Score, lower is better", "", "Why"].map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ...list.map((one) => candidateRow(one, worst)))));
}

function attempt(one, total) {
  const name = total > 1 ? `Attempt ${one.number}: ${one.backend}` : `Sent to ${one.backend}`;
  const parts = [`${duration(one.started_ms)} after arrival`, `policy ${one.policy}`];
  if (one.passed_over) parts.push(`passed over ${plural(one.passed_over, "time")} before`);
  if (one.failure) parts.push(`failed after ${duration(one.ran_ms)}: ${one.failure}`);
  return el("section", {}, el("header", {}, el("h3", {}, name), el("span", { class: "soft" }, parts.join(" · "))), candidates(one.candidates));
}

function waiting(one) {
  return el("section", {},
    el("header", {}, el("h3", {}, "Waits now"), el("span", { class: "soft" }, `for ${one.for}`)),
    one.candidates.length ? candidates(one.candidates) : null);
}

function open(title, ...parts) {
  const close = el("button", { type: "button", "aria-label": "Close" }, "Close");
  const dialog = el("dialog", { class: "request", "aria-labelledby": "request-title" },
    el("div", { class: "dialog-body" }, el("header", {}, el("h2", { id: "request-title", class: "mono" }, title), close), ...parts));
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

export async function openRequest(id) {
  let request;
  try {
    request = await askJson(`requests/${encodeURIComponent(id)}`);
  } catch (error) {
    open(id, el("p", {}, error instanceof Refused ? error.message : "The gateway did not answer."));
    return;
  }
  const also = request.client_request_id ? [el("p", { class: "soft mono" }, request.request_id)] : [];
  open(request.client_request_id ?? request.request_id, ...also, facts(request),
    ...(request.waiting ? [waiting(request.waiting)] : []),
    ...request.attempts.map((one) => attempt(one, request.attempts.length)));
}
