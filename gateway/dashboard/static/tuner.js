// What the tuner tried, what it found, what was changed.

import { byId, el, empty, setText, svg } from "./dom.js";
import { ago, count, duration, percent, plural } from "./format.js";
import { Unauthorized, askJson } from "./session.js";

const MAX_DECISIONS = 6;
let seen = null;
let told = null;
let policies = [];

function alphaOf(label) {
  const found = /alpha=([\d.]+)/.exec(label);
  return found ? Number(found[1]) : null;
}

function valueText(value, objective) {
  return objective === "attainment" ? percent(value, 1) : duration(value * 1000);
}

// The objective by alpha, as simulated on recent traffic; the present setting is the large point.
function curve(finding, presentAlpha) {
  const points = finding.curve
    .map((one) => {
      const isPresent = one.label === "as it is";
      return { ...one, isPresent, alpha: isPresent ? one.settings.alpha ?? presentAlpha : alphaOf(one.label) };
    })
    .filter((one) => one.alpha !== null)
    .sort((a, b) => a.alpha - b.alpha);
  if (points.length < 3) return null;
  const values = points.map((one) => one.value);
  const low = Math.min(...values);
  const span = Math.max(...values) - low || 1;
  const x = (alpha) => 62 + alpha * 330;
  const y = (value) => 12 + (1 - (value - low) / span) * 96;
  const line = points.map((one, index) => `${index ? "L" : "M"}${x(one.alpha)} ${y(one.value)}`).join("");
  return svg("svg", { class: "chart", viewBox: "0 0 410 140", role: "img", "aria-label": `${finding.objective} by alpha` },
    ...[low, low + span].map((value) => svg("text", { x: 54, y: y(value) + 4, "text-anchor": "end" }, valueText(value, finding.objective))),
    ...[0, 0.5, 1].map((alpha) => svg("text", { x: x(alpha), y: 134, "text-anchor": "middle" }, `α ${alpha}`)),
    svg("line", { class: "grid", x1: 62, x2: 392, y1: 116, y2: 116 }),
    svg("path", { class: "line-a", d: line }),
    ...points.map((one) => svg("circle", {
      cx: x(one.alpha), cy: y(one.value), r: one.isPresent ? 5 : 3, class: one.isPresent ? "line-b" : "line-a",
    }, svg("title", {}, `${one.label}: ${valueText(one.value, finding.objective)}`))));
}

function curvePart(finding, policy) {
  // A setting that is not named is the policy's own default, which only the policy in force tells.
  const drawn = curve(finding, policy.name === finding.policy ? policy.alpha : null) ?? empty("Too few settings differ in α to draw a curve.");
  return el("div", {}, el("h3", {}, `${finding.objective} by α, simulated on recent traffic`), drawn);
}

function settingsPart(finding) {
  const rows = finding.curve.map((one) => el("tr", {},
    el("td", {}, one.label),
    el("td", { class: "number" }, valueText(one.value, finding.objective)),
    el("td", { class: "number" }, one.label === "as it is" ? "" : `${percent(one.gain.mean, 1)} [${percent(one.gain.low, 1)}, ${percent(one.gain.high, 1)}]`)));
  return el("div", {}, el("h3", {}, `Settings of ${finding.policy} tried`), el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {},
      el("th", { scope: "col" }, "Setting"),
      el("th", { scope: "col", class: "number" }, finding.objective),
      el("th", { scope: "col", class: "number" }, "better by"))),
    el("tbody", {}, ...rows))));
}

function decisions(now) {
  const tunings = told.history.map((one) => ({
    at: one.at, text: one.applied ? `Applied: ${one.outcome}` : one.outcome,
  }));
  const changes = policies.slice(1).map((one) => ({
    at: one.at, text: `Policy in force: ${one.name}${one.alpha === null ? "" : `, α ${one.alpha}`}`,
  }));
  const lines = [...tunings, ...changes].sort((a, b) => b.at - a.at).slice(0, MAX_DECISIONS);
  return lines.map((one) => el("li", {}, el("span", { class: "soft" }, ago((now - one.at) * 1000)), el("span", {}, one.text)));
}

function draw(frame) {
  const root = byId("tuner");
  const latest = told.history.findLast((one) => one.finding !== null);
  const lines = decisions(frame.now);
  if (!lines.length) {
    root.replaceChildren(empty(`No search yet. One is made every ${duration(told.interval_s * 1000)} of traffic, if the tuner is on.`));
    return;
  }
  const parts = latest ? [curvePart(latest.finding, frame.policy), settingsPart(latest.finding)] : [];
  const log = el("div", {}, el("h3", {}, "Decisions"), el("ol", { class: "decisions" }, ...lines));
  root.replaceChildren(el("div", { class: latest ? "tuning" : null }, ...parts, log));
}

// Asked for only when something has changed; searches are minutes apart.
export async function showTuner(frame) {
  const { searches, is_searching: isSearching } = frame.tuner;
  setText(byId("tuner-note"), isSearching ? "searching now" : searches ? plural(searches, "search", "searches") : "");
  const state = `${count(searches)} ${frame.policy.name} ${frame.policy.alpha}`;
  if (state === seen) return;
  seen = state;
  try {
    told = await askJson("tuner");
    ({ policies } = await askJson("trends"));
    draw(frame);
  } catch (error) {
    seen = null;
    if (!(error instanceof Unauthorized)) setText(byId("tuner-note"), "could not be asked");
  }
}
