// The row of figures at the top.

import { byId, el, keyed, setData, setText } from "./dom.js";
import { NONE, count, duration, percent, plural, rate } from "./format.js";

function figures(frame) {
  const { rates, workflows } = frame;
  const decided = rates.met + rates.late;
  return [
    { name: "In engines", value: count(frame.in_flight), note: `${rate(rates.arrived_per_s)} calls/s arrive` },
    { name: "Waiting", value: count(frame.queued), note: frame.queued ? `${duration(frame.queued_predicted_ms)} of work` : "nothing" },
    { name: "Open workflows", value: count(frame.open_workflows), ...risk(workflows) },
    {
      name: "Deadlines met, 5 min", value: percent(rates.attainment, rates.attainment === 1 ? 0 : 1),
      note: decided ? `${count(rates.met)} of ${count(decided)}` : "none has come due",
    },
    {
      name: "Call latency, P95", value: duration(rates.call_ms_p95),
      note: rates.call_ms_p50 === null ? "no call in the last minute" : `P50 ${duration(rates.call_ms_p50)} · queue ${duration(rates.queue_ms_p95)}`,
    },
    {
      name: "Output", value: rate(rates.output_tokens_per_s), unit: "tokens/s",
      note: `${rate(rates.completed_per_s)} calls/s done`,
    },
    {
      name: "Failing", value: rates.failed_per_s ? rate(rates.failed_per_s) : "0", unit: "calls/s",
      note: rates.failed_per_s ? "failed or turned away" : "none in the last minute",
      tone: rates.failed_per_s ? "bad" : null,
    },
  ];
}

function risk({ late, at_risk: atRisk }) {
  if (late) return { note: `▲ ${count(late)} late, ${count(atRisk)} about to be`, tone: "bad" };
  if (atRisk) return { note: `△ ${plural(atRisk, "is", "are")} about to be late`, tone: "warn" };
  return { note: "all on time" };
}

function make() {
  const name = el("dt");
  const value = el("span");
  const unit = el("small");
  const note = el("div", { class: "note" });
  return {
    node: el("div", { class: "vital" }, name, el("dd", {}, el("div", { class: "value" }, value, " ", unit), note)),
    update(item) {
      setText(name, item.name);
      setText(value, item.value ?? NONE);
      setText(unit, item.unit ?? "");
      setText(note, item.note);
      setData(note, "tone", item.tone);
    },
  };
}

export function showVitals(frame) {
  keyed(byId("vitals"), figures(frame), (item) => item.name, make);
}
