// A line chart over time, drawn by hand: grid, lines, and a cross-hair for mouse and arrow keys.

import { el, setText, svg } from "./dom.js";

const HEIGHT = 172;
const LEFT = 46;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 20;

// Round steps, so that the axis reads 0, 20, 40 and not 0, 17.3, 34.6.
function ticks(top) {
  const rough = top / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= rough);
  const marks = [];
  for (let at = 0; at <= top + step * 0.001; at += step) marks.push(at);
  return marks;
}

// The line through points that have a value; it is broken where there is none.
function path(points, x, y, value) {
  let line = "";
  let isDown = false;
  points.forEach((point, index) => {
    const given = value(point);
    if (given === null || given === undefined) {
      isDown = false;
      return;
    }
    const at = `${x(point).toFixed(1)} ${y(given).toFixed(1)}`;
    const next = points[index + 1];
    const isAlone = !isDown && (next === undefined || value(next) === null || value(next) === undefined);
    line += `${isDown ? "L" : "M"}${at}${isAlone ? "h0.01" : ""}`;
    isDown = true;
  });
  return line;
}

// `series`: [{name, key, value(point), format(value)}]; `key` is a to d. `top`: fixed upper bound.
export function chart({ label, top = null, axis, agoText }) {
  const root = svg("svg", { class: "chart", role: "img", tabindex: "0", "aria-label": label });
  const readout = el("div", { class: "readout", "aria-live": "off" });
  let points = [];
  let series = [];
  let focus = null;

  function nearest(clientX) {
    const box = root.getBoundingClientRect();
    const share = (clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    return Math.round(Math.min(Math.max(share, 0), 1) * (points.length - 1));
  }

  function move(index) {
    focus = index === null || !points.length ? null : Math.min(Math.max(index, 0), points.length - 1);
    draw();
  }

  root.addEventListener("pointermove", (event) => move(nearest(event.clientX)));
  root.addEventListener("pointerleave", () => move(null));
  root.addEventListener("blur", () => move(null));
  root.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined || !points.length) return;
    event.preventDefault();
    move((focus ?? points.length - 1) + step);
  });

  function showReadout() {
    const point = points[focus ?? points.length - 1];
    const parts = point
      ? series.map((one) => el("span", {}, el("i", { class: `swatch key-${one.key}` }), `${one.name} `, el("b", {}, one.format(one.value(point)))))
      : [];
    if (point) parts.push(el("span", {}, focus === null ? "now" : agoText(point)));
    readout.replaceChildren(...parts);
  }

  function draw() {
    showReadout();
    const width = root.clientWidth || 320;
    root.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const values = series.flatMap((one) => points.map(one.value)).filter((value) => value !== null && value !== undefined);
    const marks = ticks(top ?? Math.max(...values, 1e-3) * 1.08);
    const bound = top ?? Math.max(marks.at(-1), ...values);
    const last = Math.max(points.length - 1, 1);
    const order = new Map(points.map((point, index) => [point, index]));
    const x = (point) => LEFT + (order.get(point) / last) * (width - LEFT - RIGHT);
    const y = (value) => TOP + (1 - value / bound) * (HEIGHT - TOP - BOTTOM);
    const nodes = marks.flatMap((mark) => [
      svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(mark), y2: y(mark) }),
      svg("text", { x: LEFT - 6, y: y(mark) + 4, "text-anchor": "end" }, axis(mark)),
    ]);
    // With so few points that two labels would stand at one place, fewer labels.
    for (const share of [0, 0.5].slice(0, Math.max(points.length - 1, 0))) {
      const point = points[Math.round(share * (points.length - 1))];
      nodes.push(svg("text", { x: x(point), y: HEIGHT - 5, "text-anchor": share ? "middle" : "start" }, agoText(point)));
    }
    nodes.push(svg("text", { x: width - RIGHT, y: HEIGHT - 5, "text-anchor": "end" }, "now"));
    for (const one of series) nodes.push(svg("path", { class: `line-${one.key}`, d: path(points, x, y, one.value) }));
    if (focus !== null && points[focus]) {
      const at = x(points[focus]);
      nodes.push(svg("line", { class: "cross", x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM }));
    }
    root.replaceChildren(...nodes);
  }

  return {
    nodes: [root, readout],
    show(newPoints, newSeries) {
      if (focus !== null && points.length === newPoints.length && points[0] !== newPoints[0]) focus = Math.max(focus - 1, 0);
      points = newPoints;
      series = newSeries;
      const now = points.at(-1);
      const told = now ? series.map((one) => `${one.name} ${one.format(one.value(now))}`).join(", ") : "no data";
      root.setAttribute("aria-label", `${label}, now: ${told}`);
      draw();
    },
  };
}

export function chartCard(title, parts, choice = null) {
  const heading = el("h3");
  setText(heading, title);
  return el("div", { class: "card" }, el("div", { class: "chart-head" }, heading, choice), ...parts);
}
