// Why conversations are where they are: the last choices of a replica, in words.

import { ago, clock, element, keyed, make, number, text, until } from "./view.js";

const WHY = {
  first: () => "new, or nothing is remembered of it",
  slack: ({ left, loads, replica }, slack) =>
    `moved: ${left} had ${inFlight(loads, left) - inFlight(loads, replica)} more in flight, and ${slack} more are allowed`,
  unroutable: ({ left, trouble }) => `moved: ${left} was not routable${trouble ? `: ${trouble}` : ""}`,
  refused: ({ left }) => `moved: ${left} refused the connection`,
  draining: () => "its replica was drained, or had gone",
  expired: () => "it had been inactive for too long",
  evicted: () => "there were too many conversations, and this was the one used longest ago",
  "no-affinity": () => "affinity is off",
};

const inFlight = (loads, name) => loads.find((load) => load.replica === name)?.outstanding ?? 0;

export function showDecisions({ decisions, slack, session, pinned, trouble }) {
  text(element("story"), trouble ?? (session ? story(pinned) : decisions.length ? "" : "None since the router started."));
  element("story").hidden = !element("story").textContent;
  element("decisions-table").hidden = decisions.length === 0;
  const key = ({ at, digest, replica }) => `${at} ${digest} ${replica}`;
  keyed(element("decisions"), decisions.toReversed(), key, (decision) => create(decision, slack), update);
}

function story(pinned) {
  if (!pinned) return "It is pinned nowhere: its next request goes to the least loaded replica.";
  if (!pinned.expires) return `It is pinned to ${pinned.replica}, with requests in flight.`;
  return `It is pinned to ${pinned.replica}, last used ${ago(pinned.last_activity)} ago; the pin ends after ${until(pinned.expires)} more of silence.`;
}

function create(decision, slack) {
  const time = make("time", "", clock(new Date(decision.at)));
  time.dateTime = time.title = decision.at;
  const loads = make("td", "loads");
  decision.loads.forEach((load, index) => {
    if (index) loads.append(", ");
    const kind = load.replica === decision.replica ? "strong" : "span";
    loads.append(make(kind, load.routable ? "" : "left", `${load.replica} ${load.routable ? load.outstanding : "out"}`));
  });
  if (decision.replicas > decision.loads.length) loads.append(`, and ${number(decision.replicas - decision.loads.length)} more`);
  const name = make("th", "", decision.digest);
  name.scope = "row";
  const why = WHY[decision.why]?.(decision, slack) ?? decision.why;
  const stayed = make("td", "number");
  const node = make("tr", "", make("td", "", time), name, make("td", "", decision.replica), make("td", "why", why), stayed, loads);
  node.stayed = stayed;
  return node;
}

function update(node, decision) {
  text(node.stayed, number(decision.stayed) + (decision.ended ? ", then left" : ""));
}
