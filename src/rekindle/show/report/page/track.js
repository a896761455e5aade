// One schedule over time: the times at which runs end, the layers of memory, and the runs that each pixel shows.

const LAYERS = ["resident", ...PARTS]; // from the bottom to the top

/** One schedule, ready to be drawn: the time at which each run ends, and the top of each layer during it. */
class Track {
  constructor(part, track) {
    Object.assign(this, track);
    const count = track.runs.length;
    this.ends = new Float64Array(count);
    this.tops = LAYERS.map(() => new Float64Array(count));
    this.again = new Uint8Array(count);
    this.waits = new Float64Array(count); // for copies, before the run begins
    for (const [run, seconds] of track.waits) this.waits[run] = seconds;
    const ran = new Set();
    let now = 0;
    for (let i = 0; i < count; i++) {
      const op = track.runs[i];
      this.again[i] = ran.has(op) ? 1 : 0;
      ran.add(op);
      now += this.waits[i] + part.ops.time[op];
      this.ends[i] = now;
      let top = part.resident;
      this.tops[0][i] = top;
      track.parts.forEach((row, k) => (this.tops[k + 1][i] = top += row[i]));
    }
    this.total = this.tops.at(-1);
    this.withAway = track.away.length ? this.total.map((size, i) => size + track.away[i]) : null;
    this.length = now;
  }

  start(run) {
    return run > 0 ? this.ends[run - 1] : 0;
  }

  middle(run) {
    return (this.start(run) + this.ends[run]) / 2;
  }

  /** The first run that ends at `moment` or later. */
  at(moment) {
    let low = 0;
    let high = this.ends.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.ends[middle] < moment) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** For each of `pixels` columns of the view: the run that holds most there (-1: none), and the shares of time that
   * are spent on runs again and on waits for copies. */
  columns(from, to, pixels) {
    const best = new Int32Array(pixels).fill(-1);
    const [again, waits] = [new Float64Array(pixels), new Float64Array(pixels)];
    const scale = pixels / (to - from);
    for (let run = this.at(from); run < this.ends.length && this.start(run) <= to; run++) {
      const begin = (this.start(run) - from) * scale;
      const ready = begin + this.waits[run] * scale;
      const end = (this.ends[run] - from) * scale;
      const last = Math.min(pixels - 1, Math.floor(end));
      for (let x = Math.max(0, Math.floor(begin)); x <= last; x++) {
        if (best[x] < 0 || this.total[run] > this.total[best[x]]) best[x] = run;
        if (this.again[run]) again[x] += Math.max(0, Math.min(end, x + 1) - Math.max(ready, x));
        if (this.waits[run]) waits[x] += Math.max(0, Math.min(ready, x + 1) - Math.max(begin, x));
      }
    }
    return { best, again, waits };
  }
}

/** Neighbouring columns with a run, as [xs, runs]: runs[i] from xs[i] to xs[i + 1]; columns of one run are joined. */
function stretches(best) {
  const found = [];
  for (let x = 0; x < best.length; x++) {
    if (best[x] < 0) continue;
    const last = found.at(-1);
    if (!last || last[0].at(-1) !== x) found.push([[x, x + 1], [best[x]]]);
    else if (last[1].at(-1) === best[x]) last[0][last[0].length - 1] = x + 1;
    else {
      last[0].push(x + 1);
      last[1].push(best[x]);
    }
  }
  return found;
}
