// SPDX-License-Identifier: Apache-2.0
// The measurements, with undo. A point is {u, v, m} or {u, v, m, sigma}.

const MOST_STEPS = 200;

export class Points extends EventTarget {
  constructor() {
    super();
    this.list = [];
    this.past = [];
    this.future = [];
    this.locked = false; // while those of the image are not known
  }

  get rows() {
    const sigma = this.list.length > 0 && this.list.every((point) => point.sigma > 0);
    return this.list.map(({ u, v, m, sigma: s }) => (sigma ? [u, v, m, s] : [u, v, m]));
  }

  /** Replace all points; with `remember`, undo brings the others back. */
  set(list, remember = true) {
    if (this.locked) return;
    if (remember) this.remember();
    this.list = list;
    this.dispatchEvent(new Event("change"));
  }

  /** Keep the present points for undo; called once before a drag. */
  remember() {
    if (this.locked) return;
    this.past.push(this.list);
    if (this.past.length > MOST_STEPS) this.past.shift();
    this.future = [];
  }

  add(point) { this.set([...this.list, point]); }

  change(index, values, remember = true) {
    this.set(this.list.map((point, i) => (i === index ? { ...point, ...values } : point)), remember);
  }

  remove(index) { this.set(this.list.filter((_, i) => i !== index)); }

  /** Points of another image; undo does not bring the others back. */
  load(list) {
    Object.assign(this, { list, past: [], future: [] });
    this.dispatchEvent(new Event("load"));
  }

  undo() { this.step(this.past, this.future); }

  redo() { this.step(this.future, this.past); }

  step(from, to) {
    if (this.locked || !from.length) return;
    to.push(this.list);
    this.list = from.pop();
    this.dispatchEvent(new Event("change"));
  }

  /** Index of the point nearest to a place, within a radius; -1 if there is none. */
  near(u, v, radius) {
    let found = -1, least = radius * radius;
    this.list.forEach((point, i) => {
      const square = (point.u - u) ** 2 + (point.v - v) ** 2;
      if (square <= least) [found, least] = [i, square];
    });
    return found;
  }
}

export const fromRows = (rows) => rows.map(([u, v, m, sigma]) => (sigma > 0 ? { u, v, m, sigma } : { u, v, m }));
