// Do the predicted intervals cover as many answers as they should?

import { byId, el, empty, keyed, setData, setText, svg } from "./dom.js";
import { count, duration, percent, plural } from "./format.js";

const WANTED = [50, 80, 95];
const OFF = 0.05;
let rows = null;
let bias = null;
let levels = null;

function drawCover(root, one) {
  const width = Math.max(root.clientWidth || 320, 120);
  const x = (share) => 5 + share * (width - 20);
  const nodes = [svg("line", { class: "rail", x1: x(0), x2: x(1), y1: 10, y2: 10 })];
  for (const wanted of WANTED) {
    const share = wanted / 100;
    const got = one[`cover_${wanted}`];
    nodes.push(svg("line", { class: "wanted", x1: x(share), x2: x(share), y1: 4, y2: 16 }));
    nodes.push(svg("text", { x: x(share), y: 27, "text-anchor": "middle" }, `${wanted}`));
    if (got === null || got === undefined) continue;
    const isOff = Math.abs(got - share) > OFF;
    if (isOff) nodes.push(svg("line", { class: "gap", x1: x(share), x2: x(got), y1: 10, y2: 10 }));
    nodes.push(svg("circle", { class: isOff ? "got off" : "got", cx: x(got), cy: 10, r: 4 }));
  }
  root.setAttribute("viewBox", `0 0 ${width} 28`);
  root.replaceChildren(...nodes);
}

function told(one) {
  return WANTED.map((wanted) => `${wanted} → ${percent(one[`cover_${wanted}`])}`).join(" · ");
}

function make(first) {
  const samples = el("span");
  const figures = el("span");
  const cover = svg("svg", { class: "cover", role: "img" });
  return {
    node: el("div", {}, el("h3", {}, first.of), el("p", {}, samples, figures), cover),
    update(one) {
      setText(samples, `${plural(one.samples, "answer")}${one.is_bypassed ? ", similar prompts bypassed" : ""}`);
      setText(figures, told(one));
      cover.setAttribute("aria-label", `covered, wanted and got: ${told(one)}`);
      drawCover(cover, one);
    },
  };
}

function setUp(root) {
  rows = el("div", { class: "coverage" });
  bias = el("span", { class: "pill" });
  levels = el("p", { class: "soft" });
  root.replaceChildren(
    bias,
    el("p", { class: "soft" }, "Share of real lengths within the predicted interval: marks are wanted, dots are got."),
    rows, levels);
}

function biasText(ratio) {
  if (ratio === null) return { text: "No answers in the last five minutes", tone: null };
  const off = Math.round(Math.abs(ratio - 1) * 100);
  if (off < 2) return { text: "● No bias in tokens", tone: "good" };
  const tone = off > 20 ? "warn" : "good";
  const mark = off > 20 ? "▲" : "●";
  return { text: `${mark} Bias: ${off} % too ${ratio > 1 ? "many" : "few"} tokens, five minutes`, tone };
}

export function showPrediction(frame) {
  const { calibration, by_level: byLevel, answered, answer_ms_p99: p99 } = frame.prediction;
  setText(byId("prediction-note"), answered ? `${count(answered)} predictions${p99 ? `, P99 ${duration(p99)}` : ""}` : "");
  if (!answered && !calibration.length) {
    rows = null;
    byId("prediction").replaceChildren(empty("Nothing was predicted yet."));
    return;
  }
  if (!rows) setUp(byId("prediction"));
  const { text, tone } = biasText(frame.rates.predicted_over_real);
  setText(bias, text);
  setData(bias, "tone", tone);
  keyed(rows, calibration, (one) => one.of, make);
  const parts = Object.entries(byLevel).filter(([, number]) => number);
  setText(levels, `Answered by: ${parts.map(([name, number]) => `${name} ${count(number)}`).join(", ")}`);
}
