// SPDX-License-Identifier: Apache-2.0
// The part of the image that all views show: they zoom and move together.

const MOST_ZOOM = 40;

export class Lens extends EventTarget {
  constructor() {
    super();
    this.setSize(240, 320);
  }

  setSize(height, width) {
    this.height = height;
    this.width = width;
    this.reset();
  }

  reset() {
    this.zoom = 1;
    // Centre of the part that is shown, in pixels; the centre of the top left pixel is (0, 0).
    this.u = (this.width - 1) / 2;
    this.v = (this.height - 1) / 2;
    this.changed();
  }

  changed() { this.dispatchEvent(new Event("change")); }

  /** Size of a pixel of the image on a canvas of this size. */
  scale(width, height) {
    return this.zoom * Math.min(width / this.width, height / this.height);
  }

  toScreen(u, v, width, height) {
    const scale = this.scale(width, height);
    return [(u - this.u) * scale + width / 2, (v - this.v) * scale + height / 2];
  }

  toImage(x, y, width, height) {
    const scale = this.scale(width, height);
    return [(x - width / 2) / scale + this.u, (y - height / 2) / scale + this.v];
  }

  /** Zoom such that the place u, v stays where it is. */
  zoomAt(factor, u = this.u, v = this.v) {
    const zoom = Math.min(Math.max(this.zoom * factor, 1), MOST_ZOOM);
    const share = this.zoom / zoom;
    this.moveTo(u + (this.u - u) * share, v + (this.v - v) * share, zoom);
  }

  moveTo(u, v, zoom = this.zoom) {
    this.zoom = zoom;
    const half = [this.width / 2 / zoom, this.height / 2 / zoom];
    this.u = clamp(u, half[0] - 0.5, this.width - 0.5 - half[0]);
    this.v = clamp(v, half[1] - 0.5, this.height - 0.5 - half[1]);
    this.changed();
  }

  /** Move as little as shows a place. */
  show(u, v) {
    const half = [this.width / 2 / this.zoom, this.height / 2 / this.zoom];
    this.moveTo(clamp(this.u, u - half[0], u + half[0]), clamp(this.v, v - half[1], v + half[1]));
  }

  inside(u, v) {
    return u >= -0.5 && v >= -0.5 && u < this.width - 0.5 && v < this.height - 0.5;
  }
}

const clamp = (value, low, high) => (low > high ? (low + high) / 2 : Math.min(Math.max(value, low), high));
