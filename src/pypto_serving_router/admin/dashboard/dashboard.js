// The page: looks at the router every few seconds, and carries out what the operator asks for.

import * as api from "./api.js";
import { showDecisions } from "./decisions.js";
import { History, draw } from "./history.js";
import { clock, element, hostOf, latency, number, pill, share, showEvents, showReplicas, showSlots, text } from "./view.js";

const EVERY = 2000; // milliseconds between two looks
const EVERY_LARGE = 5000; // where an answer is long
const LARGE = 200; // replicas
const EVENTS = 60;
const DECISIONS = 20;
const LOG_EVERY = 3000; // each look at a log is a command on its host
const LOG_LINES = 400;

const history = new History();
const pending = new Set();
const act = { log: showLog, launch, retire, again, cancel, free };
let seen = null; // the last answers
let lastAnswer = null; // when they came
let timer = 0;
let looks = 0;
let session = ""; // the conversation that is asked about
let locked = false; // the router wants a token
let logs = 0;

// --- looking -----------------------------------------------------------------------------------

async function look() {
  clearTimeout(timer);
  const mine = ++looks;
  try {
    const health = await api.health();
    const whole = await lookAtFleet();
    const told = whole && (await lookAtDecisions());
    if (mine !== looks) return; // a later look is under way
    lastAnswer = new Date();
    seen = { health, whole, told };
    const rows = whole?.replicas ?? health.replicas;
    history.add(performance.now(), {
      ...health,
      inFlight: rows.reduce((sum, row) => sum + row.outstanding, 0),
      routedBy: new Map((whole?.replicas ?? []).map((row) => [row.name, row.routed])),
      begunBy: new Map((whole?.replicas ?? []).map((row) => [row.name, row.first_byte])),
    });
    answered();
  } catch (error) {
    if (mine !== looks) return;
    gone(error);
  }
  schedule();
}

function schedule() {
  clearTimeout(timer);
  const large = (seen?.health.replicas_total ?? 0) > LARGE;
  if (!document.hidden) timer = setTimeout(look, large ? EVERY_LARGE : EVERY);
}

async function lookAtFleet() {
  if (locked && api.token.get() === null) return null;
  try {
    const whole = await api.fleet(EVENTS);
    lock(false);
    return whole;
  } catch (error) {
    if (!(error instanceof api.Refused)) throw error;
    if (error.status !== 401) {
      say(`The router does not show its fleet: ${error.message}`, true);
      return null;
    }
    if (api.token.get() !== null) say("The router does not accept this token.", true);
    api.token.forget();
    lock(true);
    return null;
  }
}

async function lookAtDecisions() {
  try {
    return await api.decisions(DECISIONS, session);
  } catch (error) {
    if (error instanceof api.Refused) return { decisions: [], trouble: error.message };
    throw error;
  }
}

function answered() {
  document.body.classList.remove("stale");
  element("gone").hidden = true;
  pill(element("state"), seen.health.status);
  text(element("updated"), `as of ${clock(lastAnswer)}`);
  render();
}

function gone(error) {
  document.body.classList.add("stale");
  pill(element("state"), "gone");
  const why = error instanceof api.Refused ? error.message : "it does not answer";
  const since = lastAnswer ? ` What is below is from ${clock(lastAnswer)}.` : "";
  text(element("gone"), `The router can't be reached: ${why}.${since}`);
  element("gone").hidden = false;
}

function render() {
  if (!seen) return;
  const { health, whole, told } = seen;
  const { counts, rate, affinity, rates, firstByte, firstBytes } = history.last;
  text(element("ready"), `${health.replicas_ready} / ${health.replicas_total}`);
  text(element("ready-note"), health.replicas_failed ? `${health.replicas_failed} failed` : "");
  text(element("in-flight"), number(counts.inFlight));
  text(element("rate"), rate === null ? "–" : number(rate));
  text(element("affinity"), share(affinity));
  text(element("first-byte"), latency(firstByte));
  text(element("sessions"), number(health.sessions));
  text(element("sessions-note"), health.rejected ? `${number(health.rejected)} requests found no replica` : "");
  draw(element("in-flight-chart"), history.values("inFlight"), { top: 4, label: `${counts.inFlight} requests in flight` });
  draw(element("rate-chart"), history.values("rate"), { top: 1, label: `${number(rate ?? 0)} requests per second` });
  draw(element("affinity-chart"), history.values("affinity"), { top: 1, label: `${share(affinity)} affinity hits` });
  draw(element("first-byte-chart"), history.values("firstByte"), { top: 0.1, label: `${latency(firstByte)} to the first byte` });
  showReplicas(whole?.replicas ?? health.replicas, { rates, firstBytes, pending, act });
  for (const part of ["slots", "decisions", "events"]) element(`${part}-section`).hidden = whole === null;
  if (whole) {
    showSlots(whole, { pending, act });
    showDecisions(told);
    showEvents(whole.events);
  }
  element("forget").hidden = api.token.get() === null;
}

// --- the token ---------------------------------------------------------------------------------

function lock(wanted) {
  locked = wanted;
  element("token-form").hidden = !wanted;
}

element("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  api.token.set(element("token").value.trim());
  element("token").value = "";
  element("said").hidden = true;
  look();
});

element("forget").addEventListener("click", () => {
  api.token.forget();
  look();
});

// --- acting ------------------------------------------------------------------------------------

function say(message, failed = false) {
  const said = element("said");
  said.className = failed ? "notice failed" : "notice";
  text(said, message);
  said.hidden = false;
}

// Do something that may take minutes: what it is about is marked meanwhile, and its end is said.
async function carryOut(key, { begun, done, work }) {
  if (pending.has(key)) return;
  pending.add(key);
  say(begun);
  render();
  look();
  try {
    say(done(await work()));
  } catch (error) {
    const lost = error instanceof api.Refused ? "" : "The router's answer was lost; see below what became of it. ";
    say(`${lost}${error.message}`, true);
  } finally {
    pending.delete(key);
    look();
  }
}

function launch(where) {
  return carryOut("launch", {
    begun: `Launching a replica${where.slot ? ` on ${where.slot}` : where.host ? ` on ${where.host}` : ""} …`,
    done: (row) => `${row.name} is starting. It takes requests once its model is loaded.`,
    work: () => api.launch(where),
  });
}

async function retire(name) {
  const sure = await confirm({
    title: `Drain and stop ${name}?`,
    explanation: "It takes no more requests, its sessions move, and it is stopped once its requests have ended. " +
      "The router will not replace it.",
    yes: "Drain and stop",
  });
  if (!sure) return;
  await carryOut(name, {
    begun: `${name} is being drained.`,
    done: () => `${name} is stopped, and its slot is free.`,
    work: () => api.retire(name, false),
  });
}

function again(slot) {
  return carryOut(slot, {
    begun: `Looking at ${slot} again …`,
    done: () => `${slot} is free.`,
    work: () => api.retire(slot, false),
  });
}

async function cancel(slot) {
  const sure = await confirm({
    title: `Leave ${slot} without a replica?`,
    explanation: "The one that it lost will not be replaced. The slot stays free until somebody launches on it.",
    yes: "Don't replace",
  });
  if (!sure) return;
  await carryOut(slot, {
    begun: `Cancelling the replacement on ${slot} …`,
    done: () => `${slot} stays free.`,
    work: () => api.retire(slot, false),
  });
}

async function free(slot) {
  const sure = await confirm({
    title: `Free ${slot} on your word?`,
    explanation: "The router will launch on its devices again. If a process still holds them, both will fail.",
    check: `I have looked on ${hostOf(slot)}: nothing holds these devices.`,
    yes: "Free it",
  });
  if (!sure) return;
  await carryOut(slot, {
    begun: `Freeing ${slot} …`,
    done: () => `${slot} is free, on your word.`,
    work: () => api.retire(slot, true),
  });
}

element("launch-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const host = element("where").value;
  launch(host ? { host } : {});
});

element("explain-form").addEventListener("submit", (event) => {
  event.preventDefault();
  session = element("session").value.trim();
  look();
});

function confirm({ title, explanation, check, yes }) {
  const dialog = element("confirm");
  const box = element("confirm-check");
  text(element("confirm-title"), title);
  text(element("confirm-text"), explanation);
  text(element("confirm-check-text"), check ?? "");
  text(element("confirm-yes"), yes);
  element("confirm-check-label").hidden = !check;
  box.checked = false;
  element("confirm-yes").disabled = Boolean(check);
  box.onchange = () => (element("confirm-yes").disabled = !box.checked);
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    const closed = () => {
      if (dialog.open) return; // late news of an earlier question's end: this one is still asked
      dialog.removeEventListener("close", closed);
      resolve(dialog.returnValue === "yes");
    };
    dialog.addEventListener("close", closed);
  });
}

// --- a startup log -----------------------------------------------------------------------------

async function showLog(name) {
  const dialog = element("log");
  const shown = element("log-text");
  text(element("log-title"), `Startup log of ${name}`);
  text(shown, "");
  element("log-follow").checked = true;
  dialog.showModal();
  const mine = ++logs;
  while (dialog.open && mine === logs) {
    if (!document.hidden && (element("log-follow").checked || !shown.textContent)) await readLog(name, shown);
    await new Promise((resolve) => setTimeout(resolve, LOG_EVERY));
  }
}

async function readLog(name, shown) {
  try {
    const log = await api.log(name, LOG_LINES);
    text(shown, log || "The log is empty.");
    text(element("log-note"), `the last ${LOG_LINES} lines, as of ${clock(new Date())}`);
    if (element("log-follow").checked) shown.scrollTop = shown.scrollHeight;
  } catch (error) {
    text(element("log-note"), `The log can't be read: ${error.message}`);
  }
}

// -----------------------------------------------------------------------------------------------

element("filter").addEventListener("input", render);
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : look()));
look();
