// SPDX-License-Identifier: Apache-2.0
// Mouse, fingers and keys on the views, told as places in the image.

const CLICK = 4; // movements up to this many screen pixels are a click

/** Listen to a view. `act` has the methods hover, press, drag, release and leave. */
export function listenTo(view, lens, act) {
  const { canvas } = view;
  const held = new Map();
  let pressed = null, pinched = false;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return lens.toImage(event.clientX - box.left, event.clientY - box.top, box.width, box.height);
  };
  const scale = () => lens.scale(canvas.clientWidth, canvas.clientHeight);

  canvas.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse" && event.button === 2) return;
    canvas.setPointerCapture(event.pointerId);
    held.set(event.pointerId, event);
    if (held.size > 1) {
      pinched = true;
      if (pressed) act.cancel();
      pressed = null;
      return;
    }
    pinched = false;
    const [u, v] = place(event);
    pressed = { x: event.clientX, y: event.clientY, moved: false, pan: event.button === 1 || event.ctrlKey };
    act.hover(u, v, true);
    if (!pressed.pan) act.press(u, v, 1 / scale(), event);
  });

  canvas.addEventListener("pointermove", (event) => {
    const before = held.get(event.pointerId);
    if (pinched && before) {
      const other = [...held.values()].find((one) => one.pointerId !== event.pointerId);
      if (other) pinch(before, event, other);
      held.set(event.pointerId, event);
      return;
    }
    const [u, v] = place(event);
    act.hover(u, v);
    if (!pressed) return;
    const far = Math.hypot(event.clientX - pressed.x, event.clientY - pressed.y);
    pressed.moved ||= far > CLICK;
    if (!pressed.moved) return;
    const [dx, dy] = [event.clientX - before.clientX, event.clientY - before.clientY];
    if (pressed.pan || act.pans) lens.moveTo(lens.u - dx / scale(), lens.v - dy / scale());
    else act.drag(u, v);
    held.set(event.pointerId, event);
  });

  function pinch(before, event, other) {
    const far = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
    const [dx, dy] = [event.clientX - before.clientX, event.clientY - before.clientY];
    lens.moveTo(lens.u - dx / 2 / scale(), lens.v - dy / 2 / scale());
    lens.zoomAt(far(event) / Math.max(far(before), 1), ...place(other));
  }

  const up = (event) => {
    held.delete(event.pointerId);
    if (pressed && !pinched) {
      const done = pressed;
      pressed = null;
      if (!done.pan) act.release(...place(event), done.moved, event);
    }
    if (!held.size) pinched = false;
  };
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", (event) => {
    held.delete(event.pointerId);
    pressed = null;
    act.cancel();
  });
  canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && act.leave());
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    lens.zoomAt(Math.exp(-event.deltaY / 400), ...place(event));
  }, { passive: false });
  canvas.addEventListener("contextmenu", (event) => event.preventDefault());
}
