// What the pages share: numbers for people, elements, rates, and asking. What strangers wrote is put on a page with textContent and nothing else.

const RATE_MS = 4000;

export const $ = (id) => document.getElementById(id);

// -- numbers for people

function amount(value, units, step) {
  let unit = 0;
  while (Math.abs(value) >= step && unit < units.length - 1) { value /= step; unit += 1; }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)}${units[unit]}`;
}
export const bytes = (value) => (value === undefined || value === null ? "–" : amount(value, [" B", " KiB", " MiB", " GiB", " TiB", " PiB"], 1024));
export const count = (value) => (value === undefined || value === null ? "–" : amount(value, ["", " k", " M", " G", " T"], 1000));
export const rate = (value) => (value === undefined ? "–" : `${bytes(value)}/s`);
export const whole = (value) => (value === undefined || value === null ? "–" : value.toLocaleString("en"));

// -- elements

export function make(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Table rows that stay while their key does: what is selected, or has the focus, is not pulled from under the reader.
export class Rows {
  constructor(body, classes) {
    this.body = body;
    this.classes = classes;
    this.rows = new Map();
  }
  // wanted: [[key, texts, {className, titles, make}]]
  show(wanted) {
    const left = new Map(this.rows);
    let before = null;
    for (const [key, texts, options = {}] of wanted) {
      let row = left.get(key);
      left.delete(key);
      if (!row) {
        row = make("tr");
        this.classes.forEach((className) => row.append(make("td", undefined, className)));
        if (options.made) options.made(row);
        this.rows.set(key, row);
      }
      row.className = options.className ?? "";
      texts.forEach((text, index) => {
        const cell = row.children[index];
        if (text !== null) setText(cell, text);
        if (options.titles) cell.title = options.titles[index] || "";
        cell.classList.toggle("bad", options.bad?.includes(index) ?? false);
      });
      if (options.update) options.update(row);
      if (before ? before.nextSibling !== row : this.body.firstChild !== row) before ? before.after(row) : this.body.prepend(row);
      before = row;
    }
    for (const [key, row] of left) {
      row.remove();
      this.rows.delete(key);
    }
  }
}

// -- rates: of any running total, over some seconds

export class Rates {
  constructor() { this.seen = new Map(); }
  // undefined until there is something to compare with
  of(key, timeMs, total) {
    if (total === undefined || total === null) return undefined;
    let points = this.seen.get(key);
    if (!points || total < points.at(-1)[1]) this.seen.set(key, (points = []));
    if (!points.length || points.at(-1)[0] !== timeMs) points.push([timeMs, total]);
    while (points.length > 2 && points[1][0] <= timeMs - RATE_MS) points.shift();
    const [firstMs, first] = points[0];
    return timeMs > firstMs ? ((total - first) * 1000) / (timeMs - firstMs) : undefined;
  }
  forget(timeMs) {
    for (const [key, points] of this.seen) if (points.at(-1)[0] < timeMs - 60000) this.seen.delete(key);
  }
}

// -- asking

export async function ask(path) {
  const answer = await fetch(path, { headers: { Accept: "application/json" }, signal: AbortSignal.timeout(20000) });
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error ?? `status ${answer.status}`);
  return value;
}

export function poll(path, everyMs, show) {
  let timer = null, busy = false;
  async function once() {
    timer = null;
    if (document.hidden || busy) return;
    busy = true;
    try {
      show(await ask(path), null);
    } catch (error) {
      show(null, error);
    }
    busy = false;
    if (timer === null) timer = setTimeout(once, everyMs);
  }
  document.addEventListener("visibilitychange", () => { if (!document.hidden && timer === null) once(); });
  once();
}
