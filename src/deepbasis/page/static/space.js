// SPDX-License-Identifier: Apache-2.0
// The pixels as points in space, turned with the mouse.

import { metres } from "./format.js";

const MOST_POINTS = 400000;
const VERTEX = `
attribute vec3 place; attribute vec3 colour; uniform mat4 view; uniform float size; varying vec3 shade;
void main() { gl_Position = view * vec4(place, 1.0); gl_PointSize = size / gl_Position.w; shade = colour; }`;
const FRAGMENT = "precision mediump float; varying vec3 shade; void main() { gl_FragColor = vec4(shade, 1.0); }";

export class Space {
  constructor(canvas, changed) {
    this.canvas = canvas;
    this.changed = changed;
    this.gl = canvas.getContext("webgl", { antialias: true, preserveDrawingBuffer: true });
    this.count = 0;
    this.reset();
    if (this.gl) this.build();
    this.listen();
  }

  reset() { Object.assign(this, { yaw: 0.3, pitch: -0.2, zoom: 0.8 }); }

  build() {
    const { gl } = this;
    const program = gl.createProgram();
    for (const [kind, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    gl.useProgram(program);
    this.program = program;
    this.buffers = { place: gl.createBuffer(), colour: gl.createBuffer() };
    gl.enable(gl.DEPTH_TEST);
  }

  /** Points of a depth map; `colour` writes red, green and blue of pixel i into an array. */
  set(depth, [fx, fy, cx, cy], colour) {
    if (!this.gl) return;
    const { width, height, values, step } = depth;
    const skip = Math.ceil(Math.sqrt((width * height) / MOST_POINTS));
    const places = [], colours = [], shade = [0, 0, 0];
    for (let row = 0; row < height; row += skip) {
      for (let column = 0; column < width; column += skip) {
        const i = row * width + column, z = values[i];
        if (!(z > 0) || !Number.isFinite(z)) continue;
        places.push(((column * step - cx) / fx) * z, (-(row * step - cy) / fy) * z, -z);
        colour(i, shade);
        colours.push(...shade);
      }
    }
    this.count = places.length / 3;
    const sorted = Float32Array.from(values).sort();
    this.middle = sorted[sorted.length >> 1] || 1;
    this.angle = 2 * Math.atan((height * step) / 2 / fy);
    this.pixel = skip * step / fy;
    this.fill("place", new Float32Array(places), 3, this.gl.FLOAT, false);
    this.fill("colour", new Uint8Array(colours), 3, this.gl.UNSIGNED_BYTE, true);
    this.draw();
  }

  fill(name, data, size, kind, normalised) {
    const { gl } = this;
    const at = gl.getAttribLocation(this.program, name);
    gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[name]);
    gl.bufferData(gl.ARRAY_BUFFER, data, gl.STATIC_DRAW);
    gl.enableVertexAttribArray(at);
    gl.vertexAttribPointer(at, size, kind, normalised, 0, 0);
  }

  draw() {
    const { gl, canvas } = this;
    if (!gl || !this.count || !canvas.clientWidth) return;
    const ratio = devicePixelRatio || 1;
    canvas.width = canvas.clientWidth * ratio;
    canvas.height = canvas.clientHeight * ratio;
    gl.viewport(0, 0, canvas.width, canvas.height);
    gl.clearColor(0.07, 0.08, 0.1, 1);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    const angle = this.angle * 1.05;
    gl.uniform1f(gl.getUniformLocation(this.program, "size"),
      (1.6 * this.pixel * this.middle * canvas.height) / (2 * Math.tan(angle / 2)));
    gl.uniformMatrix4fv(gl.getUniformLocation(this.program, "view"), false,
      lookAround(this.middle, this.yaw, this.pitch, this.zoom, angle, canvas.width / canvas.height));
    gl.drawArrays(gl.POINTS, 0, this.count);
  }

  listen() {
    const { canvas } = this, held = new Map();
    canvas.addEventListener("pointerdown", (event) => {
      held.set(event.pointerId, event);
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const before = held.get(event.pointerId);
      if (!before) return;
      const others = [...held.values()].filter((one) => one.pointerId !== event.pointerId);
      if (others.length) {
        const far = (one) => Math.hypot(one.clientX - others[0].clientX, one.clientY - others[0].clientY);
        this.zoomBy(far(event) / Math.max(far(before), 1));
      } else this.turn((event.clientX - before.clientX) / 200, (event.clientY - before.clientY) / 200);
      held.set(event.pointerId, event);
    });
    for (const name of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(name, (event) => held.delete(event.pointerId));
    }
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoomBy(Math.exp(-event.deltaY / 500));
    }, { passive: false });
    canvas.addEventListener("dblclick", () => { this.reset(); this.draw(); });
    canvas.addEventListener("keydown", (event) => {
      const turns = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] };
      if (turns[event.key]) this.turn(...turns[event.key]);
      else if (event.key === "+") this.zoomBy(1.15);
      else if (event.key === "-") this.zoomBy(1 / 1.15);
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
  }

  turn(right, down) {
    this.yaw += right;
    this.pitch = Math.min(Math.max(this.pitch - down, -1.5), 1.5);
    this.draw();
  }

  zoomBy(factor) {
    this.zoom = Math.min(Math.max(this.zoom * factor, 0.2), 8);
    this.draw();
  }

  get description() { return `${this.count} points, middle at ${metres(this.middle)} m`; }
}

/** A matrix that looks at a place straight ahead, from around it. Column by column. */
function lookAround(middle, yaw, pitch, zoom, angle, aspect) {
  const [cy, sy, cp, sp] = [Math.cos(yaw), Math.sin(yaw), Math.cos(pitch), Math.sin(pitch)];
  const turn = [[cy, 0, sy], [sp * sy, cp, -sp * cy], [-cp * sy, sp, cp * cy]];
  // The place turned about is at (0, 0, -middle); zooming moves towards it.
  const away = middle / zoom;
  const shift = turn.map((row, i) => row[2] * middle - (i === 2 ? away : 0));
  const near = away / 50, far = away + 50 * middle;
  const f = 1 / Math.tan(angle / 2);
  const lens = [f / aspect, f];
  const a = (far + near) / (near - far), b = (2 * far * near) / (near - far);
  const columns = [];
  for (let column = 0; column < 4; column++) {
    const [x, y, z] = column < 3 ? turn.map((row) => row[column]) : shift;
    columns.push(lens[0] * x, lens[1] * y, a * z + (column === 3 ? b : 0), -z);
  }
  return new Float32Array(columns);
}
