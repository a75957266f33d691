// A line chart of two rates over the last minutes. It only draws what it is given.

const SVG = "http://www.w3.org/2000/svg";
const LEFT = 64, RIGHT = 8, TOP = 8, BOTTOM = 20;

export function element(name, attributes, parent) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (parent) parent.append(made);
  return made;
}

// The least round number that is not below a value: 1, 2 or 5 times a power of 10, or of 1024 for bytes.
export function roundUp(value) {
  if (!(value > 0)) return 1024;
  let unit = 1;
  while (value >= 1024 * unit) unit *= 1024;
  for (const step of [1, 2, 3, 4, 5, 10, 20, 30, 40, 50, 100, 200, 300, 400, 500, 1024]) if (value <= step * unit) return step * unit;
  return 1024 * unit;
}

export class Chart {
  // series: [{name, label}], shown in this order; format turns a rate into text.
  constructor(place, series, spanMs, format) {
    this.series = series;
    this.spanMs = spanMs;
    this.format = format;
    this.points = [];
    this.pointer = null;
    this.hidden = new Set();
    this.legend = document.createElement("p");
    this.legend.className = "legend";
    this.texts = series.map(({ name }) => {
      const span = document.createElement("span");
      span.className = name;
      this.legend.append(span);
      return span;
    });
    this.time = document.createElement("span");
    this.time.className = "time";
    this.legend.append(this.time);
    this.svg = element("svg", { class: "chart", role: "img", "aria-label": "bytes in and out per second over the last minutes" });
    place.append(this.legend, this.svg);
    this.svg.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.svg.addEventListener("pointerleave", () => this.point(null));
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  // A hidden series is in neither the picture nor the legend.
  hide(name, isHidden) {
    isHidden ? this.hidden.add(name) : this.hidden.delete(name);
    this.texts[this.series.findIndex((each) => each.name === name)].hidden = isHidden;
  }

  // values: by name of series; a missing one is not known.
  add(timeMs, values) {
    this.points.push({ timeMs, values });
    while (this.points.length && this.points[0].timeMs < timeMs - this.spanMs) this.points.shift();
    this.draw();
  }

  point(x) {
    this.pointer = x;
    this.draw();
  }

  draw() {
    const width = this.svg.clientWidth, height = this.svg.clientHeight;
    this.svg.replaceChildren();
    if (!width || !height) return;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const last = this.points.at(-1);
    const now = last ? last.timeMs : 0;
    const known = this.points.flatMap((point) => this.series.map(({ name }) => point.values[name] ?? 0));
    const most = roundUp(Math.max(0, ...known));
    const seenMs = this.points.length ? now - this.points[0].timeMs : 0;
    const spanMs = Math.min(this.spanMs, Math.max(60000, Math.ceil(seenMs / 60000) * 60000)); // it grows with what there is to show
    const x = (timeMs) => width - RIGHT - ((now - timeMs) / spanMs) * (width - LEFT - RIGHT);
    const y = (value) => height - BOTTOM - (value / most) * (height - TOP - BOTTOM);
    for (const part of [0, 0.5, 1]) {
      element("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(part * most), y2: y(part * most) }, this.svg);
      const text = element("text", { x: LEFT - 6, y: y(part * most) + 4, "text-anchor": "end" }, this.svg);
      text.textContent = this.format(part * most);
    }
    const minutes = spanMs / 60000;
    for (const minute of width < 500 ? [minutes, 0] : Array.from({ length: minutes + 1 }, (_, index) => index)) {
      const text = element("text", { x: x(now - minute * 60000), y: height - 4, "text-anchor": minute === 0 ? "end" : minute === minutes ? "start" : "middle" }, this.svg);
      text.textContent = minute === 0 ? "now" : `−${minute} min`;
    }
    this.series.forEach(({ name }) => this.line(name, x, y));
    this.tell(x, height);
  }

  line(name, x, y) {
    const places = this.points.filter((point) => point.values[name] !== undefined).map((point) => [x(point.timeMs).toFixed(1), y(point.values[name]).toFixed(1)]);
    if (places.length < 2) return;
    const path = places.map(([left, top], index) => `${index ? "L" : "M"}${left} ${top}`).join("");
    element("path", { class: `area ${name}`, d: `${path}L${places.at(-1)[0]} ${y(0)}L${places[0][0]} ${y(0)}Z` }, this.svg);
    element("path", { class: `line ${name}`, d: path }, this.svg);
  }

  // The legend has the values under the pointer, or the last ones.
  tell(x, height) {
    let chosen = this.points.at(-1);
    if (this.pointer !== null && chosen) {
      chosen = this.points.reduce((best, point) => (Math.abs(x(point.timeMs) - this.pointer) < Math.abs(x(best.timeMs) - this.pointer) ? point : best));
      element("line", { class: "cursor", x1: x(chosen.timeMs), x2: x(chosen.timeMs), y1: TOP, y2: height - BOTTOM }, this.svg);
    }
    this.series.forEach(({ name, label }, index) => {
      const value = chosen?.values[name];
      this.texts[index].textContent = value === undefined ? `${label}: not known` : `${label} ${this.format(value)}`;
    });
    this.time.textContent = this.pointer !== null && chosen ? new Date(chosen.timeMs).toLocaleTimeString() : "";
  }
}
