// The dashboard: one frame a second from the gateway, handed to every part of the page.

import { byId, setData, setText } from "./dom.js";
import { showFleet } from "./fleet.js";
import { showPrediction } from "./prediction.js";
import { showQueues } from "./queues.js";
import { setUpRequests, showRequests } from "./requests.js";
import { Unauthorized, askForKey, forgetKey, key } from "./session.js";
import { events } from "./stream.js";
import { catchUp, showTrends } from "./trends.js";
import { showTuner } from "./tuner.js";
import { showVitals } from "./vitals.js";
import { showWorkflows } from "./workflows.js";

const PARTS = [
  showVitals, showFleet, showWorkflows, showQueues, showTrends, showPrediction, showTuner,
  showRequests,
];
const PAUSES_S = [1, 2, 5, 10];
let retryNow = () => {};

function show(frame) {
  for (const part of PARTS) part(frame);
  setText(byId("policy"), policyOf(frame));
}

function policyOf({ policy }) {
  const alpha = policy.alpha === null ? "" : ` · α ${policy.alpha}`;
  return `Policy ${policy.name}${alpha}`;
}

function connection(word, mark, tone) {
  const [markNode, wordNode] = byId("connection").children;
  setText(markNode, mark);
  setText(wordNode, word);
  setData(byId("connection"), "tone", tone);
}

function banner(text) {
  byId("banner").hidden = text === null;
  document.body.classList.toggle("is-stale", text !== null);
  if (text !== null) setText(byId("banner").firstElementChild, text);
}

async function follow() {
  await catchUp();
  for await (const frame of events("events")) {
    if (frame.missing === null) connection("Live", "●", "good");
    else connection(`Not ready: ${frame.missing}`, "▲", "warn");
    banner(null);
    show(frame);
    failures = 0;
  }
  throw new Error("The gateway ended the connection.");
}

let failures = 0;

async function pause() {
  const seconds = PAUSES_S[Math.min(failures, PAUSES_S.length - 1)];
  failures += 1;
  await new Promise((resolve) => {
    const timer = setTimeout(resolve, seconds * 1000);
    retryNow = () => {
      clearTimeout(timer);
      resolve();
    };
  });
}

function explain(error) {
  // What fetch itself throws says nothing that a person could use.
  const isNetwork = error instanceof TypeError || error.name === "AbortError" || error.message === "silence";
  const what = isNetwork ? "The gateway does not answer." : error.message;
  return `${what} What you see is the last that was heard; trying again.`;
}

async function run() {
  for (;;) {
    try {
      await follow();
    } catch (error) {
      if (error instanceof Unauthorized) {
        connection("Key needed", "○", "warn");
        banner(null);
        await askForKey(error.message === "wrong");
        continue;
      }
      connection("Reconnecting", "✕", "bad");
      banner(explain(error));
    }
    await pause();
    connection("Reconnecting", "○", "bad");
  }
}

byId("banner").querySelector("button").addEventListener("click", () => retryNow());
byId("forget-key").hidden = !key();
byId("forget-key").addEventListener("click", () => {
  forgetKey();
  location.reload();
});
setUpRequests();
run();
