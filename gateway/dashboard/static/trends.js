// Deadlines, latencies and rates over the last half hour.

import { chart, chartCard } from "./chart.js";
import { byId, el } from "./dom.js";
import { ago, duration, percent, rate } from "./format.js";
import { askJson } from "./session.js";

const SMOOTH_SLOTS = 6;
let points = [];
let most = 180;
let now = 0;
let slotS = 10;
let charts = null;
let latencyOf = "workflow_ms";

const LATENCIES = {
  workflow_ms: "Workflows",
  call_ms: "Calls",
  first_token_ms: "First token",
  queue_ms: "Queue",
};

// What the gateway remembers from before this page was opened.
export async function catchUp() {
  const told = await askJson("trends");
  points = told.points;
  most = Math.max(most, points.length);
}

function merge(latest) {
  for (const point of latest) {
    const index = points.findIndex((one) => one.at === point.at);
    if (index >= 0) points[index] = point;
    else if (!points.length || point.at > points.at(-1).at) points.push(point);
  }
  points = points.slice(-most);
}

// Of deadlines that came due in the minute before: single slots hold too few.
function attainment(point) {
  let met = 0;
  let late = 0;
  for (const one of points) {
    if (one.at <= point.at && one.at > point.at - SMOOTH_SLOTS * slotS) {
      met += one.met;
      late += one.late;
    }
  }
  return met + late ? met / (met + late) : null;
}

function agoText(point) {
  return ago(Math.max(now - point.at, 0) * 1000);
}

function setUp() {
  const met = chart({ label: "Deadlines met", top: 1, axis: (value) => percent(value), agoText });
  const latency = chart({ label: "Latency", axis: (value) => duration(value), agoText });
  const throughput = chart({ label: "Calls a second", axis: (value) => rate(value), agoText });
  const choice = el("select", { "aria-label": "Latency of" },
    ...Object.entries(LATENCIES).map(([value, name]) => el("option", { value }, name)));
  choice.addEventListener("change", () => {
    latencyOf = choice.value;
    draw();
  });
  for (const [title, one, control] of [
    ["Deadlines met, over a minute", met, null],
    ["Latency", latency, choice],
    ["Calls a second", throughput, null],
  ]) {
    byId("trends").append(el("section", { class: "narrow", "aria-label": title }, chartCard(title, one.nodes, control)));
  }
  charts = { met, latency, throughput };
  new ResizeObserver(draw).observe(byId("trends"));
}

// The slot under way would show as a fall: only what is over is drawn, if anything is.
function over() {
  const done = points.filter((point) => point.at + slotS <= now);
  return done.length ? done : points;
}

function draw() {
  const shown = over();
  charts.met.show(shown, [{ name: "met", key: "a", value: attainment, format: (value) => percent(value, 1) }]);
  charts.latency.show(shown, ["P50", "P95", "P99"].map((name, index) => ({
    name, key: "abc"[index], value: (point) => point[latencyOf][index], format: duration,
  })));
  charts.throughput.show(shown, [
    { name: "arrived", key: "c", value: (point) => point.arrived_per_s, format: rate },
    { name: "done", key: "a", value: (point) => point.completed_per_s, format: rate },
    { name: "failed", key: "d", value: (point) => point.failed_per_s, format: rate },
  ]);
}

export function showTrends(frame) {
  if (!charts) setUp();
  now = frame.now;
  slotS = frame.slot_s;
  merge(frame.trend);
  draw();
}
