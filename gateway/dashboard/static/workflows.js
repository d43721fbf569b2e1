// Open workflows on a common axis of time: the past left of now, the predicted rest right of it.

import { byId, el, empty, keyed, setData, setText, svg } from "./dom.js";
import { count, duration, plural } from "./format.js";
import { filterByWorkflow } from "./requests.js";

const HEIGHT = 34;
const PAD = 5;
const MAX_LANES = 5;
let rows = null;
let axis = null;

function word(run) {
  const left = run.deadline_ms === null ? null : run.deadline_ms - run.elapsed_ms;
  if (run.ended_ms_ago !== undefined) {
    if (run.is_late) return `${run.doing}, late by ${duration(run.elapsed_ms - run.deadline_ms)}`;
    return `${run.doing} in ${duration(run.elapsed_ms)}`;
  }
  if (run.is_late) return `▲ late by ${duration(-left)}`;
  if (run.is_at_risk) return `△ about to be late by ${duration(run.done_ms - run.deadline_ms)}`;
  const doing = { running: "runs", waiting: "waits", tools: "tool time" }[run.doing];
  return left === null ? `${doing}, no deadline` : `${doing}, ${duration(left)} left`;
}

function tone(run) {
  if (run.is_late) return "bad";
  return run.is_at_risk ? "warn" : null;
}

// Past and future that fit all rows; past 90 % of the longest so that one old run squeezes nobody.
function domain(runs) {
  const past = Math.max(1000, ...runs.map((run) => run.elapsed_ms + (run.ended_ms_ago ?? 0)));
  const open = runs.filter((run) => run.ended_ms_ago === undefined);
  const future = Math.max(0.15 * past, ...open.map((run) =>
    Math.max(run.done_ms ?? 0, run.deadline_ms ?? 0) - run.elapsed_ms));
  return { past, future: Math.min(future, 2 * past) };
}

function lanesOf(spans) {
  const ends = [];
  return spans.map((span) => {
    let lane = ends.findIndex((end) => end <= span.from_ms);
    if (lane < 0) lane = ends.length < MAX_LANES ? ends.length : MAX_LANES - 1;
    ends[lane] = span.until_ms;
    return lane;
  });
}

function rect(kind, left, right, y, height, title) {
  const node = svg("rect", { class: kind, x: left, y, width: Math.max(right - left, 1.5), height, rx: 1.5 });
  node.append(svg("title", {}, title));
  return node;
}

function spanNodes(span, x, y, height) {
  const nodes = [];
  const name = span.stage ?? "call";
  const startsAt = span.started_ms ?? span.until_ms;
  if (startsAt - span.from_ms > 0) {
    nodes.push(rect("waits", x(span.from_ms), x(startsAt), y + 0.7, height - 1.4,
      `${name} waited ${duration(startsAt - span.from_ms)}`));
  }
  if (span.started_ms !== null) {
    const kind = { running: "runs", completed: "ran" }[span.state] ?? "broke";
    nodes.push(rect(kind, x(span.started_ms), x(span.until_ms), y, height,
      `${name} on ${span.backend}, ${duration(span.until_ms - span.started_ms)}, ${span.state}`));
  }
  return nodes;
}

function draw(track, run, { past, future }, width) {
  const isOver = run.ended_ms_ago !== undefined;
  const opened = -(run.elapsed_ms + (run.ended_ms_ago ?? 0));
  const x = (ms) => ((past + Math.max(opened + ms, -past)) / (past + future)) * width;
  const middle = HEIGHT / 2;
  const nodes = [svg("line", { class: "life", x1: x(0), x2: x(run.elapsed_ms), y1: middle, y2: middle })];
  const lanes = lanesOf(run.spans);
  const laneCount = Math.max(1, ...lanes.map((lane) => lane + 1));
  const laneHeight = Math.min((HEIGHT - 2 * PAD) / laneCount, 14);
  const top = middle - (laneHeight * laneCount) / 2;
  run.spans.forEach((span, index) => {
    nodes.push(...spanNodes(span, x, top + lanes[index] * laneHeight + 0.5, Math.max(laneHeight - 1, 2)));
  });
  if (!isOver && run.done_ms !== null && run.done_ms > run.elapsed_ms) {
    nodes.push(svg("line", { class: "forecast", x1: x(run.elapsed_ms), x2: Math.min(x(run.done_ms), width), y1: middle, y2: middle }));
  }
  const now = (past / (past + future)) * width;
  nodes.push(svg("line", { class: "now", x1: now, x2: now, y1: 0, y2: HEIGHT }));
  if (run.deadline_ms !== null) {
    const at = x(run.deadline_ms);
    if (at <= width) {
      const flag = svg("path", { class: "deadline-flag", d: `M${at} 1h6l-2.2 3 2.2 3h-6z` });
      nodes.push(svg("line", { class: "deadline", x1: at, x2: at, y1: 1, y2: HEIGHT - 2 }), flag);
    }
  }
  track.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  track.setAttribute("height", HEIGHT);
  track.replaceChildren(...nodes);
}

function make(first) {
  const button = el("button", { type: "button", class: "link" });
  const state = el("span", { class: "state" });
  const track = svg("svg", { class: "track", role: "img" });
  const node = el("div", { class: "run" }, el("div", { class: "who" }, button, state), el("div", {}, track));
  button.addEventListener("click", () => filterByWorkflow(first.id));
  return {
    node,
    update(run) {
      setText(button, run.name ? `${run.name} · ${run.id}` : run.id);
      button.title = `${run.id}, ${plural(run.calls, "call")}: show its requests`;
      setText(state, word(run));
      setData(node, "tone", tone(run));
      node.classList.toggle("is-over", run.ended_ms_ago !== undefined);
      track.setAttribute("aria-label", `${word(run)}; ${plural(run.calls, "call")}`);
      draw(track, run, run.domain, run.width);
    },
  };
}

function showAxis({ past, future }, width) {
  const now = (past / (past + future)) * width;
  const track = axis.lastChild.firstChild;
  track.setAttribute("viewBox", `0 0 ${width} 16`);
  track.setAttribute("height", 16);
  const label = (x, anchor, text) => svg("text", { x, y: 12, "text-anchor": anchor }, text);
  track.replaceChildren(
    label(0, "start", `${duration(past)} ago`), label(now, "middle", "now"),
    label(width, "end", `in ${duration(future)}`));
}

function setUp(root) {
  axis = el("div", { class: "axis", "aria-hidden": "true" }, el("span"), el("div", {}, svg("svg", { class: "track" })));
  rows = el("div");
  root.replaceChildren(axis, rows);
}

export function showWorkflows(frame) {
  const root = byId("workflows");
  const { open, ended, known, at_risk: atRisk, late } = frame.workflows;
  const runs = [...open, ...ended];
  const shown = open.length < frame.open_workflows ? `, the ${count(open.length)} in most need` : "";
  setText(byId("workflows-note"), known
    ? `${count(frame.open_workflows)} open${shown} · ${count(late)} late · ${count(atRisk)} about to be late`
    : "");
  if (!runs.length) {
    rows = null;
    root.replaceChildren(empty("No workflows yet. Calls with an x-workflow-id show here."));
    return;
  }
  if (!rows) setUp(root);
  const shared = domain(runs);
  const style = getComputedStyle(axis);
  const isNarrow = style.display === "none";
  const width = Math.max((isNarrow ? root.clientWidth : axis.lastChild.clientWidth) || 300, 120);
  if (!isNarrow) showAxis(shared, width);
  keyed(rows, runs.map((run) => ({ ...run, domain: shared, width })), keyOf, make);
}

function keyOf(run) {
  const over = run.ended_ms_ago === undefined ? "" : "over";
  return `${run.tenant}\n${run.id}\n${over}`;
}
