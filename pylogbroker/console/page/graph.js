// A graph as a picture, from left to right: nodes in layers, edges as curves. It only draws what it is given.

import { element } from "/chart.js";

const WIDTH = 172, HEIGHT = 44, GAP_X = 48, GAP_Y = 16, BEND = 14, ROUND = 4, LOOP = 44, LETTERS = 22, NODES_MAX = 200;
let drawn = 0;

const cut = (text) => (text.length > LETTERS ? `${text.slice(0, LETTERS - 1)}…` : text);

// Edges that lead back, in a circle, say nothing of the layers.
function backEdges(nodes, edges) {
  const back = new Set(), state = new Map(), order = [];
  const visit = (node) => {
    state.set(node, 1);
    for (const edge of edges) {
      if (edge.from !== node) continue;
      if (state.get(edge.to) === 1) back.add(edge);
      else if (!state.get(edge.to)) visit(edge.to);
    }
    state.set(node, 2);
    order.unshift(node);
  };
  for (const { id } of nodes) if (!state.get(id)) visit(id);
  return [back, order];
}

function layersOf(nodes, edges) {
  const [back, order] = backEdges(nodes, edges), layer = new Map(order.map((id) => [id, 0])), forward = edges.filter((edge) => !back.has(edge));
  for (const id of order) for (const edge of forward) if (edge.from === id) layer.set(edge.to, Math.max(layer.get(edge.to), layer.get(id) + 1));
  for (const id of order) { // what only begins stands beside what it leads to
    const next = forward.filter((edge) => edge.from === id).map((edge) => layer.get(edge.to));
    if (next.length && !forward.some((edge) => edge.to === id)) layer.set(id, Math.min(...next) - 1);
  }
  return [layer, back];
}

// An edge over several layers gets a place in each between, so that it crosses no node.
function place(nodes, edges) {
  const [layer, back] = layersOf(nodes, edges), columns = [], links = [], ways = new Map();
  const put = (cell, column) => ((columns[column] ??= []).push(cell), cell);
  const cells = new Map(nodes.map((node) => [node.id, put({ node, height: HEIGHT, column: layer.get(node.id) }, layer.get(node.id))]));
  for (const edge of edges) {
    if (back.has(edge)) continue;
    const way = [cells.get(edge.from)];
    for (let at = layer.get(edge.from) + 1; at < layer.get(edge.to); at += 1) way.push(put({ height: BEND, column: at }, at));
    way.push(cells.get(edge.to));
    for (let at = 1; at < way.length; at += 1) links.push([way[at - 1], way[at]]);
    ways.set(edge, way);
  }
  for (let turn = 0; turn < 6; turn += 1) { // each cell goes to the middle of its neighbours
    const isDown = turn % 2 === 0;
    for (const column of isDown ? columns : [...columns].reverse()) {
      for (const cell of column) {
        const near = links.flatMap(([one, other]) => (isDown ? (other === cell ? [one] : []) : one === cell ? [other] : [])).map((each) => columns[each.column].indexOf(each) / columns[each.column].length);
        cell.rank = near.length ? near.reduce((one, other) => one + other, 0) / near.length : column.indexOf(cell) / column.length;
      }
      column.sort((one, other) => one.rank - other.rank);
    }
  }
  const heights = columns.map((column) => column.reduce((sum, cell) => sum + cell.height + GAP_Y, -GAP_Y)), height = Math.max(...heights);
  columns.forEach((column, number) => {
    let y = (height - heights[number]) / 2;
    for (const cell of column) {
      cell.x = number * (WIDTH + GAP_X);
      cell.y = y + cell.height / 2;
      y += cell.height + GAP_Y;
    }
  });
  return { cells, ways, back: [...back], height, width: columns.length * (WIDTH + GAP_X) - GAP_X };
}

function shape(kind, x, y, parent) {
  const top = y - HEIGHT / 2;
  if (kind !== "store") return element("rect", { class: kind, x, y: top, width: WIDTH, height: HEIGHT, rx: kind === "topic" ? HEIGHT / 2 : 6 }, parent);
  const round = `${WIDTH / 2} ${ROUND} 0 0`;
  return element("path", { class: kind, d: `M${x} ${top + ROUND}A${round} 1 ${x + WIDTH} ${top + ROUND}V${top + HEIGHT - ROUND}A${round} 1 ${x} ${top + HEIGHT - ROUND}ZM${x} ${top + ROUND}A${round} 0 ${x + WIDTH} ${top + ROUND}` }, parent);
}

function curve(way) {
  const [first, ...rest] = way;
  let x = first.x + WIDTH, path = `M${x} ${first.y}`, y = first.y;
  for (const cell of rest) {
    path += `C${x + GAP_X / 2} ${y} ${cell.x - GAP_X / 2} ${cell.y} ${cell.x - (cell.node ? 3 : 0)} ${cell.y}`;
    if (!cell.node) path += `H${cell.x + WIDTH}`;
    [x, y] = [cell.x + WIDTH, cell.y];
  }
  return path;
}

// nodes: [{id, kind: job, step, topic or store, title, note}]; edges: [{from, to}]; about: what it shows, for those who do not see it
export function drawGraph(into, nodes, edges, about) {
  into.replaceChildren();
  into.hidden = !nodes.length || nodes.length > NODES_MAX;
  if (into.hidden) return;
  const { cells, ways, back, height, width } = place(nodes, edges), arrow = `arrow-${(drawn += 1)}`;
  const margin = back.length ? LOOP : 4, wholeWidth = width + 2 * margin, wholeHeight = height + 8 + back.length * BEND * 2;
  const svg = element("svg", { class: "graph", role: "img", "aria-label": about, width: wholeWidth, height: wholeHeight, viewBox: `${-margin} -4 ${wholeWidth} ${wholeHeight}` });
  const marker = element("marker", { id: arrow, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto" }, element("defs", {}, svg));
  element("path", { d: "M0 0L8 4L0 8Z" }, marker);
  const line = (d, className) => element("path", { class: className, d, "marker-end": `url(#${arrow})` }, svg);
  for (const way of ways.values()) line(curve(way), "edge");
  back.forEach((edge, number) => {
    const from = cells.get(edge.from), to = cells.get(edge.to), below = height + BEND * (2 * number + 1);
    line(`M${from.x + WIDTH} ${from.y}C${from.x + WIDTH + LOOP} ${from.y} ${from.x + WIDTH + LOOP} ${below} ${from.x + WIDTH} ${below}H${to.x}C${to.x - LOOP} ${below} ${to.x - LOOP} ${to.y} ${to.x - 3} ${to.y}`, "edge");
  });
  for (const { node, x, y } of cells.values()) {
    const group = element("g", {}, svg);
    element("title", {}, group).textContent = `${node.title}: ${node.note}`;
    shape(node.kind, x, y, group);
    const lower = node.kind === "store" ? 2 : 0; // below the lid
    element("text", { x: x + WIDTH / 2, y: y - 1 + lower, "text-anchor": "middle" }, group).textContent = cut(node.title);
    element("text", { class: "note", x: x + WIDTH / 2, y: y + 13 + lower, "text-anchor": "middle" }, group).textContent = cut(node.note);
  }
  into.append(svg);
}
