// SPDX-License-Identifier: Apache-2.0
// The connection to the server: questions with their answers, and a new connection when one breaks.
// Messages are described in protocol.py.

const KINDS = { f4: Float32Array, f8: Float64Array, u1: Uint8Array };
const FIRST_DELAY = 300, LAST_DELAY = 4000;

export class Link extends EventTarget {
  constructor(address) {
    super();
    this.address = address;
    this.asked = 0;
    this.open = new Map();
    this.delay = FIRST_DELAY;
    this.connect();
  }

  connect() {
    const socket = new WebSocket(this.address);
    socket.binaryType = "arraybuffer";
    socket.onmessage = (message) => this.receive(decode(message.data));
    socket.onclose = () => this.lose();
    this.socket = socket;
  }

  get ready() { return this.socket.readyState === WebSocket.OPEN && this.greeted; }

  lose() {
    this.greeted = false;
    for (const { reject } of this.open.values()) reject(new Lost());
    this.open.clear();
    this.dispatchEvent(new Event("lost"));
    setTimeout(() => this.connect(), this.delay);
    this.delay = Math.min(2 * this.delay, LAST_DELAY);
  }

  receive({ header, arrays }) {
    if (header.event === "hello") {
      this.greeted = true;
      this.delay = FIRST_DELAY;
    }
    if (header.event) {
      this.dispatchEvent(Object.assign(new Event(header.event), { header, arrays }));
      return;
    }
    const waiting = this.open.get(header.id);
    if (!waiting) return;
    if (header.error) {
      this.open.delete(header.id);
      waiting.reject(new Error(header.error));
      return;
    }
    const last = waiting.parts === null || header.done;
    if (!last) {
      waiting.parts(header, arrays);
      return;
    }
    this.open.delete(header.id);
    waiting.resolve({ header, arrays });
  }

  /** Ask for something. `parts` is called with all parts of an answer but the last. */
  ask(action, fields = {}, content = null, parts = null) {
    return new Promise((resolve, reject) => {
      if (!this.ready) return reject(new Lost());
      const id = ++this.asked;
      this.open.set(id, { resolve, reject, parts });
      this.socket.send(encode({ do: action, id, ...fields }, content));
    });
  }
}

/** The connection broke; everything is asked again when there is a new one. */
export class Lost extends Error {
  constructor() { super("the connection to the server is lost"); }
}

function encode(header, content) {
  const text = new TextEncoder().encode(JSON.stringify(header));
  const start = align(4 + text.length);
  const message = new Uint8Array(start + (content ? content.byteLength : 0));
  new DataView(message.buffer).setUint32(0, text.length, true);
  message.set(text, 4);
  if (content) message.set(new Uint8Array(content), start);
  return message;
}

function decode(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const arrays = {};
  let at = 4 + length;
  for (const [name, kind, shape] of header.arrays) {
    at = align(at);
    const count = shape.reduce((a, b) => a * b, 1);
    const values = new KINDS[kind](buffer, at, count);
    arrays[name] = { values, shape };
    at += values.byteLength;
  }
  return { header, arrays };
}

const align = (size) => Math.ceil(size / 8) * 8;
