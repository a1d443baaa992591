// The last minutes of traffic, as this page saw them, and the small charts of it.

const KEPT = 90; // samples: three minutes at two seconds
const WINDOW = 15; // samples: one look alone has too few requests for a share
const SOON = 1000; // milliseconds; the rates of a shorter time are noise
const WIDTH = 100;
const HEIGHT = 30;
const SVG = "http://www.w3.org/2000/svg";

export class History {
  samples = [];

  // Rates are differences between two looks; a router that was restarted counts from zero again.
  add(at, counts) {
    const last = this.last;
    if (last && at - last.at < SOON) return;
    const restarted = last && counts.routed < last.counts.routed;
    if (restarted) this.samples = [];
    const seconds = last && !restarted ? (at - last.at) / 1000 : 0;
    this.samples.push({
      at,
      counts,
      rate: seconds ? (counts.routed - last.counts.routed) / seconds : null,
      affinity: this.share(counts),
      rates: rates(last?.counts.routedBy, counts.routedBy, seconds),
      firstByte: this.firstByte(counts, [...counts.begunBy.keys()]),
      firstBytes: new Map([...counts.begunBy.keys()].map((name) => [name, this.firstByte(counts, [name])])),
    });
    if (this.samples.length > KEPT) this.samples.shift();
  }

  // Which share of the last requests went to the replica of their session.
  share(counts) {
    const first = this.samples.at(-WINDOW) ?? this.samples[0];
    const routed = first ? counts.routed - first.counts.routed : 0;
    return routed ? (counts.affinity_hits - first.counts.affinity_hits) / routed : null;
  }

  // How long the last answers of some replicas took to begin, in seconds.
  firstByte(counts, names) {
    const first = this.samples.at(-WINDOW) ?? this.samples[0];
    if (!first) return null;
    let answers = 0;
    let seconds = 0;
    for (const name of names) {
      const now = counts.begunBy.get(name);
      const then = first.counts.begunBy.get(name) ?? { answers: 0, seconds: 0 };
      answers += now.answers - then.answers;
      seconds += now.seconds - then.seconds;
    }
    return answers > 0 ? seconds / answers : null;
  }

  get last() {
    return this.samples.at(-1);
  }

  values(name) {
    return this.samples.map((sample) => (name in sample ? sample[name] : sample.counts[name]));
  }
}

function rates(before, after, seconds) {
  const found = new Map();
  if (!before || !seconds) return found;
  for (const [name, count] of after) {
    const difference = count - (before.get(name) ?? 0);
    if (difference >= 0) found.set(name, difference / seconds);
  }
  return found;
}

// Draw numbers, the latest at the right; null is a gap.
export function draw(svg, values, { top, label }) {
  const peak = Math.max(top ?? 0, ...values.filter((value) => value !== null), 1e-9);
  const step = WIDTH / (KEPT - 1);
  const start = WIDTH - step * (values.length - 1);
  let line = "";
  let area = "";
  let begun = null;
  values.forEach((value, index) => {
    const x = (start + index * step).toFixed(2);
    if (value === null) {
      if (begun !== null) area += `L${begun.last},${HEIGHT}Z`;
      begun = null;
      return;
    }
    const y = (HEIGHT - 1 - (value / peak) * (HEIGHT - 2)).toFixed(2);
    area += begun === null ? `M${x},${HEIGHT}L${x},${y}` : `L${x},${y}`;
    line += `${begun === null ? "M" : "L"}${x},${y}`;
    begun = { last: x };
  });
  if (begun !== null) area += `L${begun.last},${HEIGHT}Z`;
  if (!svg.firstChild) {
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    svg.setAttribute("preserveAspectRatio", "none");
    for (const name of ["area", "line"]) {
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("class", name);
      svg.append(path);
    }
  }
  svg.firstChild.setAttribute("d", area);
  svg.lastChild.setAttribute("d", line);
  svg.setAttribute("aria-label", label);
}
