// From what the router said to what the page shows. Text goes in as text, and only where it has changed.

export const element = (id) => document.getElementById(id);

export function text(node, value) {
  const shown = String(value);
  if (node.textContent !== shown) node.textContent = shown;
}

export function make(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

export function button(label, name, action) {
  const node = make("button");
  node.type = "button";
  node.about = name;
  relabel(node, label);
  node.addEventListener("click", action);
  return node;
}

function relabel(node, label) {
  if (node.textContent === label) return;
  node.textContent = label;
  node.setAttribute("aria-label", `${label}: ${node.about}`);
}

// Keep one child of `parent` for each item, in order; what has the focus stays in the page.
export function keyed(parent, items, key, create, update) {
  const children = (parent.keyed ??= new Map());
  const wanted = new Set(items.map(key));
  for (const [name, child] of children) {
    if (!wanted.has(name)) {
      child.remove();
      children.delete(name);
    }
  }
  let place = parent.firstElementChild;
  for (const item of items) {
    let child = children.get(key(item));
    if (!child) {
      child = create(item);
      children.set(key(item), child);
    }
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
    update(child, item);
  }
}

export const number = (value) => value.toLocaleString("en", { maximumFractionDigits: 1 });
export const share = (value) => (value === null || value === undefined ? "–" : `${Math.round(value * 100)} %`);
export const clock = (moment) => moment.toLocaleTimeString("en-GB");
export const hostOf = (slot) => slot.replace(/-d\d+$/, "");

export const ago = (iso, now = Date.now()) => duration((now - Date.parse(iso)) / 1000);
export const until = (iso, now = Date.now()) => duration((Date.parse(iso) - now) / 1000);

function duration(wanted) {
  const seconds = Math.max(0, wanted);
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export function latency(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  return seconds < 1 ? `${Math.round(1000 * seconds)} ms` : `${number(seconds)} s`;
}

export function pill(node, name) {
  text(node, name);
  const wanted = `pill ${name}`;
  if (node.className !== wanted) node.className = wanted;
}

// --- replicas ----------------------------------------------------------------------------------

export function showReplicas(rows, { rates, firstBytes, pending, act }) {
  const peak = Math.max(8, ...rows.map((row) => row.outstanding));
  element("no-replicas").hidden = rows.length > 0;
  element("filter-label").hidden = rows.length <= 20;
  const filter = element("filter-label").hidden ? "" : element("filter").value.trim().toLowerCase();
  keyed(element("replicas"), rows, (row) => row.name, (row) => createReplica(row, act), (node, row) => {
    const cells = node.parts;
    node.hidden = !`${row.name} ${row.phase} ${row.last_error ?? ""}`.toLowerCase().includes(filter);
    text(cells.url, row.url);
    pill(cells.phase, row.phase);
    text(cells.since, row.since ? `for ${ago(row.since)}` : "");
    cells.since.title = row.since ?? "";
    text(cells.outstanding, row.outstanding);
    cells.load.style.width = `${(100 * row.outstanding) / peak}%`;
    text(cells.sessions, row.sessions ?? "–");
    text(cells.rate, rates.has(row.name) ? number(rates.get(row.name)) : "–");
    text(cells.routed, row.routed === undefined ? "–" : number(row.routed));
    text(cells.firstByte, latency(firstBytes.get(row.name)));
    text(cells.error, row.phase === "ready" ? "" : (row.last_error ?? "")); // what it has got over is among the events
    cells.log.hidden = cells.retire.hidden = !row.owned;
    cells.retire.disabled = pending.has(row.name);
    relabel(cells.retire, row.phase === "draining" || pending.has(row.name) ? "Draining …" : "Drain and stop");
  });
}

function createReplica(row, act) {
  const parts = {
    url: make("small"),
    phase: make("span", "pill"),
    since: make("small"),
    outstanding: make("span"),
    load: make("i"),
    sessions: make("td", "number"),
    rate: make("td", "number"),
    routed: make("td", "number"),
    firstByte: make("td", "number"),
    error: make("td", "error"),
    log: button("Log", row.name, () => act.log(row.name)),
    retire: button("Drain and stop", row.name, () => act.retire(row.name)),
  };
  const name = make("th", "", row.name, parts.url);
  name.scope = "row";
  const node = make(
    "tr",
    "",
    name,
    make("td", "", parts.phase, parts.since),
    make("td", "", make("span", "load", parts.load), parts.outstanding),
    parts.sessions,
    parts.rate,
    parts.routed,
    parts.firstByte,
    parts.error,
    make("td", "", parts.log, parts.retire),
  );
  node.parts = parts;
  return node;
}

// --- slots -------------------------------------------------------------------------------------

const ADVICE = {
  "stop-unconfirmed": (host) =>
    `The router could not see that its replica is gone, so its devices count as held. Look at the processes on ${host}; ` +
    "then try the stop again, or free the slot if you know that nothing holds the devices.",
  "unreachable-at-startup": (host) =>
    "A replica was launched here before the router restarted, and nothing answers. If it answers yet, the router takes " +
    `it back. Else look at the processes on ${host}, and try to stop it.`,
  "address-in-use": (host) =>
    `Something that the router did not launch answers at this slot's address. End it on ${host}; then look again.`,
  undeclared: (host) =>
    `The fleet file no longer has this slot, and a replica may run on it still. Stop it on ${host}; then free the slot.`,
};

export function slotsOf({ replicas, capacity }) {
  const slots = new Map();
  for (const slot of capacity.free_slots) slots.set(slot, { slot, state: "free" });
  for (const row of replicas) if (row.slot) slots.set(row.slot, { slot: row.slot, state: row.phase, since: row.since });
  for (const entry of capacity.cooling) slots.set(entry.slot, { ...entry, state: "cooling" });
  for (const entry of capacity.abandoned) slots.set(entry.slot, { ...entry, state: "abandoned" });
  for (const entry of capacity.unconfirmed) slots.set(entry.slot, { ...entry, state: "unconfirmed" });
  for (const slot of slots.values()) slot.error = capacity.last_errors[slot.slot];
  return [...slots.values()].sort((a, b) => a.slot.localeCompare(b.slot, "en", { numeric: true }));
}

export function showSlots(whole, { pending, act }) {
  const { capacity } = whole;
  const slots = slotsOf(whole);
  element("slots-section").hidden = slots.length === 0;
  const left = Math.max(0, Math.min(capacity.ceiling - capacity.owned, capacity.free_slots.length));
  text(element("capacity"), `${capacity.owned} of ${capacity.ceiling} held, ${left} left to launch on`);
  element("launch").disabled = left === 0 || pending.has("launch");
  text(element("launch"), pending.has("launch") ? "Launching …" : "Launch a replica");

  const hosts = Map.groupBy ? Map.groupBy(slots, (slot) => hostOf(slot.slot)) : grouped(slots);
  const choices = [["", "on the next free slot"], ...[...hosts.keys()].map((host) => [host, `on ${host}`])];
  keyed(element("where"), choices, ([value]) => value, ([value, label]) => new Option(label, value), () => {});
  keyed(element("hosts"), [...hosts], ([host]) => host, createHost, (node, [, ofHost]) => {
    keyed(node.list, ofHost, (slot) => slot.slot, (slot) => createSlot(slot, act), (item, slot) =>
      updateSlot(item, slot, { launchable: left > 0 && !pending.has("launch"), busy: pending.has(slot.slot) }),
    );
  });
}

function grouped(slots) {
  const hosts = new Map();
  for (const slot of slots) hosts.set(hostOf(slot.slot), [...(hosts.get(hostOf(slot.slot)) ?? []), slot]);
  return hosts;
}

function createHost([host]) {
  const list = make("ul");
  const node = make("div", "host", make("h3", "", host), list);
  node.list = list;
  return node;
}

function createSlot({ slot }, act) {
  const parts = {
    state: make("span", "pill"),
    advice: make("p"),
    error: make("p"),
    log: button("Log", slot, () => act.log(slot)),
    launch: button("Launch here", slot, () => act.launch({ slot })),
    again: button("Try again", slot, () => act.again(slot)),
    cancel: button("Don't replace …", slot, () => act.cancel(slot)),
    free: button("Free it …", slot, () => act.free(slot)),
  };
  parts.free.className = "danger";
  const node = make("li", "slot", make("span", "name", slot), parts.state, " ", parts.log, parts.launch, parts.again);
  node.append(parts.cancel, parts.free, parts.advice, parts.error);
  node.parts = parts;
  return node;
}

function updateSlot(node, slot, { launchable, busy }) {
  const { parts } = node;
  const cooling = slot.state === "cooling";
  const free = cooling || slot.state === "free" || slot.state === "abandoned";
  const unconfirmed = slot.state === "unconfirmed";
  pill(parts.state, slot.state);
  parts.launch.hidden = !free;
  parts.launch.disabled = !launchable;
  parts.again.hidden = !unconfirmed || slot.reason === "undeclared";
  parts.free.hidden = !unconfirmed;
  parts.cancel.hidden = !cooling;
  parts.cancel.disabled = parts.again.disabled = parts.free.disabled = busy;
  relabel(parts.again, slot.reason === "address-in-use" ? "Look again" : busy ? "Trying …" : "Try the stop again");
  let advice = "";
  if (unconfirmed) advice = `${slot.reason}, for ${ago(slot.since)}. ${ADVICE[slot.reason]?.(hostOf(slot.slot)) ?? ""}`;
  if (cooling) advice = `It ${slot.reason}, and will be launched on again in ${until(slot.until)}.`;
  if (slot.state === "abandoned") advice = `${slot.reason}. The router won't use it again by itself; mend it, then launch.`;
  text(parts.advice, advice);
  text(parts.error, slot.error ? `Last error: ${slot.error}` : "");
  parts.advice.hidden = !advice;
  parts.error.hidden = !slot.error;
}

// --- events ------------------------------------------------------------------------------------

const APART = new Set(["number", "timestamp", "level", "event", "replica", "slot", "from", "to", "error", "host", "generation", "url"]);

export function showEvents(events) {
  element("events-section").hidden = false;
  element("no-events").hidden = events.length > 0;
  element("events").hidden = events.length === 0;
  keyed(element("events"), events.toReversed(), (event) => event.number, createEvent, () => {});
}

function createEvent(event) {
  const time = make("time", "", clock(new Date(event.timestamp)));
  time.dateTime = time.title = event.timestamp;
  const moved = event.to ? `: ${event.from} → ${event.to}` : `: ${event.event}`;
  const more = Object.entries(event).filter(([name, value]) => !APART.has(name) && value !== null && value !== 0);
  const details = more.map(([name, value]) => `${name} ${typeof value === "string" ? value : JSON.stringify(value)}`);
  if (event.error) details.unshift(event.error);
  const node = make("li", event.level, time, make("strong", "", event.replica ?? event.slot), moved);
  if (details.length) node.append(make("small", "note", ` (${details.join(", ")})`));
  return node;
}
