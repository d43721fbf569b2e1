// One card a backend: what it is, what it has to do, how fast it turned out to be.

import { bar, byId, el, empty, keyed, setData, setText } from "./dom.js";
import { count, duration, percent, plural } from "./format.js";
import { Refused, askJson } from "./session.js";

// The word, the mark and the colour of a state: never the colour alone.
export function stateOf(backend) {
  if (backend.state === "down") return { word: "Down", mark: "✕", tone: "bad" };
  if (backend.state === "draining") return { word: "Draining", mark: "◐", tone: "warn" };
  if (backend.breaker === "open") return { word: "Breaker open", mark: "▲", tone: "bad" };
  if (backend.breaker === "half_open") return { word: "On trial", mark: "△", tone: "warn" };
  if (backend.ramp < 1) return { word: `Recovering, ${percent(backend.ramp)}`, mark: "◔", tone: "warn" };
  return { word: "Up", mark: "●", tone: "good" };
}

function speed({ factor, samples }, name) {
  if (!samples) return `${name} not measured yet`;
  const off = Math.round(Math.abs(factor - 1) * 100);
  if (off < 1) return `${name} as configured`;
  return `${name} ${off} % ${factor > 1 ? "slower" : "faster"}`;
}

function gauge(label) {
  const value = el("span", { class: "number" });
  const track = bar();
  return { node: el("div", { class: "gauge" }, el("span", {}, label), value, track.node), value, track };
}

function make(first) {
  const pill = el("span", { class: "pill" }, el("span", { class: "mark", "aria-hidden": "true" }), el("span"));
  const models = el("p", { class: "soft" });
  const flight = gauge("In flight");
  const kv = gauge("KV budget");
  const backlog = el("span", { class: "number" });
  const behind = el("span");
  const learned = el("span");
  const button = el("button", { type: "button" });
  const node = el("article", { class: "card backend", "data-backend": first.name },
    el("div", { class: "backend-head" }, el("div", {}, el("h3", {}, first.name), models), pill),
    flight.node, kv.node,
    el("div", { class: "gauge" }, el("span", {}, "Backlog", " ", behind), backlog),
    el("div", { class: "backend-foot" }, learned, button));
  let latest = first;
  button.addEventListener("click", () => confirmDrain(latest));
  return {
    node,
    update(backend) {
      latest = backend;
      const state = stateOf(backend);
      setData(node, "tone", state.tone);
      setData(pill, "tone", state.tone);
      setText(pill.firstChild, state.mark);
      setText(pill.lastChild, state.word);
      setText(models, [backend.gpu, ...backend.models].join(" · "));
      setText(flight.value, `${count(backend.in_flight)} / ${count(backend.slots)}`);
      flight.track.set(backend.in_flight / backend.slots);
      showKv(kv, backend);
      setText(backlog, duration(backend.backlog_ms));
      setText(behind, backlogNote(backend));
      const { prefill, decode } = backend.learned;
      setText(learned, `Learned: ${speed(decode, "decode")}, ${speed(prefill, "prefill")}`);
      const drains = backend.state === "draining";
      setText(button, drains ? "Undrain" : "Drain");
      button.setAttribute("aria-label", `${drains ? "Undrain" : "Drain"} ${backend.name}`);
    },
  };
}

function showKv(kv, backend) {
  const budget = backend.kv_budget_tokens ?? backend.kv_tokens;
  const share = backend.kv_reserved_tokens / budget;
  setText(kv.value, `${percent(share)} of ${count(budget / 1000)}k`);
  kv.track.set(share, share > 0.95 ? "warn" : null);
}

function backlogNote(backend) {
  const notes = [];
  if (backend.queued) notes.push(`${count(backend.queued)} bound`);
  if (backend.engine_waiting) notes.push(`${count(backend.engine_waiting)} wait in the engine`);
  return notes.length ? `(${notes.join(", ")})` : "";
}

function confirmDrain(backend) {
  const drains = backend.state === "draining";
  const word = drains ? "Undrain" : "Drain";
  const text = drains
    ? "It may be given calls again."
    : `It finishes its ${plural(backend.in_flight, "call")} and gets nothing new until it is undrained.`;
  const wrong = el("p", { class: "wrong", role: "alert" });
  const cancel = el("button", { type: "button" }, "Cancel");
  const sure = el("button", { type: "button", class: drains ? "primary" : "danger" }, word);
  const dialog = el("dialog", { class: "small", "aria-labelledby": "drain-title" },
    el("div", { class: "dialog-body" },
      el("h2", { id: "drain-title" }, `${word} ${backend.name}?`), el("p", {}, text), wrong,
      el("div", { class: "dialog-actions" }, cancel, sure)));
  cancel.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  sure.addEventListener("click", async () => {
    sure.disabled = true;
    try {
      const action = drains ? "undrain" : "drain";
      await askJson(`backends/${encodeURIComponent(backend.name)}/${action}`, { method: "POST" });
      dialog.close();
    } catch (error) {
      setText(wrong, error instanceof Refused ? error.message : "The gateway did not answer.");
      sure.disabled = false;
    }
  });
  document.body.append(dialog);
  dialog.showModal();
  cancel.focus();
}

export function showFleet(frame) {
  const { backends } = frame;
  const up = backends.filter((backend) => stateOf(backend).tone === "good").length;
  setText(byId("fleet-note"), `${count(up)} of ${plural(backends.length, "backend")} up and well`);
  const root = byId("fleet");
  if (!backends.length && !root.parts?.size) {
    root.replaceChildren(empty("No backends. Add some in backends.yaml."));
    return;
  }
  if (!root.parts) root.replaceChildren();
  keyed(root, backends, (backend) => backend.name, make);
}
