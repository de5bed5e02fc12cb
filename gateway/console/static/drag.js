// Draw a rectangle over the heat map: it fills the form below, which says the same without a script.
(() => {
  let from = null, box = null;
  const plot = (event) => event.target.closest?.("[data-heat]");
  const cell = (frame, event) => {
    const svg = frame.querySelector("svg"), at = svg.getBoundingClientRect();
    const columns = +svg.dataset.columns, rows = +svg.dataset.rows;
    const x = Math.floor((event.clientX - at.left) / at.width * columns), y = Math.floor((event.clientY - at.top) / at.height * rows);
    return { svg, columns, rows, x: Math.min(Math.max(x, 0), columns - 1), y: Math.min(Math.max(y, 0), rows - 1) };
  };
  const between = (to) => [Math.min(from.x, to.x), Math.max(from.x, to.x), Math.min(from.y, to.y), Math.max(from.y, to.y)];
  document.addEventListener("pointerdown", (event) => {
    const frame = plot(event);
    if (!frame || event.button) return;
    from = { frame, ...cell(frame, event) };
    from.svg.querySelectorAll(".box").forEach((one) => one.remove());
    box = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    box.setAttribute("class", "box");
    from.svg.append(box);
    frame.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  document.addEventListener("pointermove", (event) => {
    if (!from) return;
    const [left, right, top, bottom] = between(cell(from.frame, event)), height = from.svg.getBoundingClientRect().height / from.rows;
    box.setAttribute("x", `${left / from.columns * 100}%`);
    box.setAttribute("width", `${(right + 1 - left) / from.columns * 100}%`);
    box.setAttribute("y", top * height);
    box.setAttribute("height", (bottom + 1 - top) * height);
  });
  document.addEventListener("pointerup", (event) => {
    if (!from) return;
    const [left, right, top, bottom] = between(cell(from.frame, event)), rows = from.rows;
    from = null;
    const form = document.querySelector("[data-heat-form]"), pick = (name, number) => { form.elements[name].selectedIndex = number; };
    pick("is", 0);
    pick("from", left + 1);
    pick("to", right + 1);
    pick("low", rows - 1 - bottom);
    pick("high", top === 0 ? 0 : rows - top);
    form.requestSubmit();
  });
  document.addEventListener("pointercancel", () => { from = null; });
})();
