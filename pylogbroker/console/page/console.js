// The page. It asks for the state once a second while somebody looks, and works out rates from what has changed. Everything that strangers wrote
// (topics, groups, addresses, messages) is put on the page with textContent and nothing else.

import { Chart } from "/chart.js";
import { $, Rates, Rows, ask, bytes, count, make, poll, rate, setText, whole } from "/elements.js";

const STATE_MS = 1000, GROUPS_MS = 2000, SPAN_MS = 5 * 60 * 1000, STUCK_MS = 60 * 1000, PARTITIONS_SHOWN = 300, TOPICS_SHOWN = 500;

const rates = new Rates();
// What is known of other brokers is younger or older, as they were asked.
const knownMs = (state, part) => (part.broker === state.own?.id ? state.timeMs : state.foreignTimeMs);

// -- traffic

// A broker's own page shows the traffic of that broker alone. A page without a broker knows only what the logs have grown by.
const chart = new Chart($("chart"), [{ name: "in", label: "bytes in" }, { name: "out", label: "bytes out" }], SPAN_MS, (value) => rate(value));
const tiles = new Map();
function tile(name, label, text) {
  if (!tiles.has(name)) {
    const box = make("div", undefined, name);
    box.append(make("dt", label), make("dd"));
    $("tiles").append(box);
    tiles.set(name, box.lastChild);
  }
  setText(tiles.get(name), text);
}

// Bytes that a partition of today's Kafka grows by: its offsets count records.
const grownBy = (state, key, part) => rates.of(`size ${key}`, knownMs(state, part), part.size);

// The bytes of partitions, of which some may not be known.
function stored(parts) {
  const sizes = parts.map((part) => part.size).filter((size) => size !== undefined), sum = bytes(sizes.reduce((one, other) => one + other, 0));
  return sizes.length === parts.length ? sum : sizes.length ? `at least ${sum}` : "not known";
}

let lastChartMs = 0;
function showTraffic(state) {
  const own = state.own, now = state.timeMs;
  const all = state.topics.flatMap((topic) => topic.partitions.map((part) => [`${topic.name}/${part.broker}/${part.partition}`, part]));
  let incoming;
  for (const [key, part] of all) {
    const each = isCurrent(state) ? grownBy(state, key, part) : rates.of(`in ${key}`, knownMs(state, part), part.end);
    if (each !== undefined) incoming = (incoming ?? 0) + each;
  }
  if (!all.length && state.isKnown) incoming = 0;
  if (own) incoming = rates.of("produced", now, own.total.producedSize);
  const outgoing = own ? rates.of("out", now, own.total.fetchedSize) : undefined;
  if (now > lastChartMs) {
    lastChartMs = now;
    const point = {};
    if (incoming !== undefined) point.in = incoming;
    if (outgoing !== undefined) point.out = outgoing;
    chart.add(now, point);
  }
  setText($("traffic-title"), own ? `Traffic of broker ${own.id}` : "Traffic of all brokers");
  tile("in", "bytes in", rate(incoming));
  chart.hide("out", !own);
  if (own) {
    tile("out", "bytes out", rate(outgoing));
    const messages = rates.of("messages", now, own.total.messageCount);
    tile("messages", "messages in", messages === undefined ? "–" : `${count(messages)}/s`);
    tile("clients", "clients", whole(own.connections.openCount));
  }
  tile("size", "stored", state.isKnown ? stored(all.map(([, part]) => part).filter((part) => !own || part.broker === own.id)) : "not known");
  if (own) tile("unflushed", "not flushed", bytes(own.unflushed));
  if (own) {
    const cpu = rates.of("cpu", now, own.cpuSeconds);
    tile("cpu", "processor", cpu === undefined ? "–" : `${(cpu * 100).toFixed(0)} %`);
    tile("memory", "memory", bytes(own.memory));
  }
}

// -- back pressure

const REASONS = {
  flush: "too much is not flushed yet",
  disk: "the disk is full",
  roll: "the next segment is being made",
  memory: "the memory for large requests is used up",
  reader: "it reads its answer slowly",
  work: "a worker thread processes it",
};
const WANTS = { produce: "produce", fetch: "fetch", offsets: "ask for offsets", send: "send a large request" };
const waitingRows = new Rows($("waiting"), ["", "", "name", ""]);
function showPressure(own) {
  $("pressure").hidden = !own; // only a broker itself knows
  if (!own) return;
  const where = (each) => (each.topic ? (each.partition >= 0 ? `${each.topic}-${each.partition}` : each.topic) : "");
  const rows = own.holding.map((each) => [
    `holding ${each.topic} ${each.partition} ${each.reason}`,
    [`${whole(each.requestCount)} request${each.requestCount === 1 ? "" : "s"}`, "produce", where(each) || "all topics", REASONS[each.reason] ?? each.reason],
  ]);
  rows.push(...own.waiting.map((each) => [
    `client ${each.peer} ${each.what}`, [each.peer, WANTS[each.what] ?? each.what, where(each), REASONS[each.reason] ?? each.reason],
  ]));
  const total = Object.values(own.waitingCounts).reduce((sum, each) => sum + each, 0);
  if (total > own.waiting.length) rows.push(["more", [`and ${whole(total - own.waiting.length)} more`, "", "", ""]]);
  waitingRows.show(rows);
  $("pressure-card").hidden = !rows.length;
  $("calm").hidden = rows.length > 0;
  setText($("calm"), "No client has to wait.");
}

// -- brokers

const notKnown = (state, what) => (isCurrent(state) ? `The ${what} are not known: no broker answers.` : `The ${what} are not known without ZooKeeper.`);
const placeName = (row) => (row.broker < 0 ? String(row.partition) : `${row.broker}-${row.partition}`);

const brokerRows = new Rows($("brokers"), ["number", "", "number", "number", "number", "wrap"]);
function showBrokers(state) {
  const sums = new Map();
  for (const topic of state.topics) {
    for (const part of topic.partitions) {
      const sum = sums.get(part.broker) ?? { parts: [], rate: undefined };
      sum.parts.push(part);
      const key = `${topic.name}/${part.broker}/${part.partition}`;
      const each = isCurrent(state) ? grownBy(state, key, part) : isCurrent(topic) ? undefined : rates.of(`in ${key}`, knownMs(state, part), part.end);
      if (each !== undefined) sum.rate = (sum.rate ?? 0) + each;
      sums.set(part.broker, sum);
    }
    const own = isCurrent(topic) && topic.counts ? rates.of(`bytes ${topic.name}`, state.timeMs, topic.counts.producedSize) : undefined;
    const sum = sums.get(state.own?.id);
    if (own !== undefined && sum) sum.rate = (sum.rate ?? 0) + own;
  }
  brokerRows.show(state.brokers.map((broker) => {
    const sum = sums.get(broker.id) ?? { parts: [], rate: broker.problem ? undefined : 0 };
    const told = [broker.isOwn ? "this one" : "", broker.isRegistered === true ? "registered" : broker.isRegistered === false ? "not registered" : "", broker.isController ? "controller" : ""];
    const says = broker.problem || told.filter(Boolean).join(", ");
    const size = broker.problem && !sum.parts.length ? "not known" : stored(sum.parts);
    return [broker.id, [String(broker.id), null, whole(sum.parts.length), size, rate(sum.rate), says],
      { bad: broker.problem ? [5] : [], update: (row) => showAddress(row.children[1], broker) }];
  }));
  $("no-brokers").hidden = state.brokers.length > 0;
  setText($("no-brokers"), state.isKnown ? "No brokers." : notKnown(state, "brokers"));
}

// The address leads to the broker's own page, if the console was told where that is.
function showAddress(cell, broker) {
  const link = cell.firstElementChild;
  if (!broker.page) {
    if (link || cell.textContent !== broker.endpoint) cell.replaceChildren(broker.endpoint);
  } else if (link?.getAttribute("href") !== broker.page || link.textContent !== broker.endpoint) {
    const made = make("a", broker.endpoint);
    made.href = broker.page;
    made.title = "this broker's own page, with the clients that wait for it";
    cell.replaceChildren(made);
  }
}

// -- replicas: a row for each partition, a column for each broker; in words, since not everybody sees colours

let mapShown = "";
function showMap(cluster) {
  $("map-section").hidden = !cluster;
  const text = JSON.stringify(cluster ?? null);
  if (!cluster || text === mapShown) return; // what is selected stays
  mapShown = text;
  const shown = cluster.partitions.length, all = cluster.partitionCount, few = shown < all ? `; ${whole(shown)} are shown` : "";
  setText($("map-sum"), `${whole(all)} partition${all === 1 ? "" : "s"}, ${whole(cluster.troubledCount)} in trouble, ${whole(cluster.offlineCount)} without a leader${few}`);
  const head = make("tr");
  head.append(make("th", "partition"));
  for (const broker of cluster.brokers) {
    const cell = make("th", `broker ${broker.id}`, broker.state === "running" ? "" : "bad");
    const sum = `leads ${whole(broker.leaderCount)}, ${whole(broker.inSyncCount)} of ${whole(broker.replicaCount)} in sync`;
    for (const line of [broker.rack && `rack ${broker.rack}`, broker.state !== "running" && broker.state, sum]) if (line) cell.append(make("br"), line);
    head.append(cell);
  }
  head.querySelectorAll("th").forEach((cell) => (cell.scope = "col"));
  $("map").tHead.replaceChildren(head);
  $("map").tBodies[0].replaceChildren(...cluster.partitions.map((part) => {
    const row = make("tr"), name = make("th", `${part.topic}-${part.partition}`, part.isTroubled ? "bad" : "");
    name.scope = "row";
    row.append(name, ...cluster.brokers.map((broker) => {
      const role = part.replicas[broker.id] ?? "";
      return make("td", role, `${role.replace(/ /g, "-")}${role === "behind" || role === "offline" ? " bad" : ""}`);
    }));
    return row;
  }));
}

// -- topics

const topicRows = new Rows($("topics"), ["name", "number", "number", "number", "number", "number", "number"]);
const open = new Set();
let latest = null;

// Offsets of today's Kafka count records, those of Kafka 0.7 bytes.
const isCurrent = (what) => what?.kind === "kafka";
const lagText = (what, number) => (isCurrent(what) ? `${whole(number)} record${number === 1 ? "" : "s"}` : bytes(number));

function topicMade(row, name) {
  const fold = make("button", undefined, "fold");
  fold.type = "button";
  fold.addEventListener("click", () => {
    open.has(name) ? open.delete(name) : open.add(name);
    showTopics(latest);
  });
  row.children[0].append(fold);
  row.dataset.topic = name;
  const topic = latest.topics.find((each) => each.name === name);
  if (isCurrent(topic) && !isCurrent(latest)) row.children[0].append(make("span", "today's", "kind"));
  if (latest.hasMessages) {
    const look = make("button", "messages");
    look.type = "button";
    look.addEventListener("click", () => openMessages(name));
    row.lastChild.append(look);
  }
}

function sizeGrown(state, topic) {
  const known = topic.partitions.map((part) => grownBy(state, `${topic.name}/${part.broker}/${part.partition}`, part)).filter((each) => each !== undefined);
  return known.length ? known.reduce((one, other) => one + other, 0) : undefined;
}

function showTopics(state) {
  $("topics-table").classList.toggle("cluster", !state.own);
  const wanted = $("filter").value.toLowerCase();
  const found = state.topics.filter((topic) => topic.name.toLowerCase().includes(wanted));
  const rows = [];
  for (const topic of found.slice(0, TOPICS_SHOWN)) {
    const parts = topic.partitions.map((part) => [part, rates.of(`in ${topic.name}/${part.broker}/${part.partition}`, knownMs(state, part), part.end)]);
    const known = parts.map(([, each]) => each).filter((each) => each !== undefined);
    const grown = known.length ? known.reduce((one, other) => one + other, 0) : undefined;
    const sum = isCurrent(state) ? sizeGrown(state, topic) : !isCurrent(topic) ? grown : topic.counts ? rates.of(`bytes ${topic.name}`, state.timeMs, topic.counts.producedSize) : undefined;
    const messages = topic.counts ? rates.of(`messages ${topic.name}`, state.timeMs, topic.counts.messageCount) : undefined;
    const out = topic.counts ? rates.of(`out ${topic.name}`, state.timeMs, topic.counts.fetchedSize) : undefined;
    const isHere = parts.some(([part]) => part.broker === state.own?.id);
    const bad = parts.some(([part]) => part.problem);
    rows.push([
      `topic ${topic.name}`,
      [null, whole(parts.length), parts.length ? stored(topic.partitions) : "not known", rate(sum),
        !isHere ? "" : messages === undefined ? "–" : `${count(messages)}/s`, isHere ? rate(out) : "", null],
      {
        made: (row) => topicMade(row, topic.name),
        update: (row) => {
          const fold = row.firstChild.firstChild;
          setText(fold, topic.name);
          fold.title = topic.name;
          fold.setAttribute("aria-expanded", String(open.has(topic.name)));
          row.firstChild.classList.toggle("bad", bad);
        },
      },
    ]);
    if (open.has(topic.name)) rows.push(...partitionRows(topic, parts));
  }
  topicRows.show(rows);
  $("no-topics").hidden = state.topics.length > 0;
  setText($("no-topics"), state.isKnown ? "No topics yet. The first message to a topic creates it." : notKnown(state, "topics"));
  const shown = Math.min(found.length, TOPICS_SHOWN);
  setText($("topic-count"), !state.isKnown ? "" : shown === state.topics.length ? `${whole(shown)} topic${shown === 1 ? "" : "s"}` : `${whole(shown)} of ${whole(state.topics.length)} topics`);
}

function partitionRows(topic, parts) {
  const rows = parts.slice(0, PARTITIONS_SHOWN).map(([part, each]) => {
    const marks = part.start === undefined ? "" : `${whole(part.start)} … ${whole(part.visible)}`;
    const more = part.segments ? `${whole(part.segments)} segment${part.segments === 1 ? "" : "s"}` : "";
    const name = `partition ${placeName(part)}${part.problem ? `: ${part.problem}` : ""}`;
    return [
      `part ${topic.name}/${part.broker}/${part.partition}`,
      [name, marks, bytes(part.size), !isCurrent(topic) ? rate(each) : each === undefined ? "–" : `${count(each)}/s`, more, part.unflushed ? `${bytes(part.unflushed)} not flushed` : "", ""],
      { className: "part", titles: [part.problem, marks && "offsets that can be read"], bad: part.problem ? [0] : [] },
    ];
  });
  if (parts.length > PARTITIONS_SHOWN) rows.push([`more ${topic.name}`, [`and ${whole(parts.length - PARTITIONS_SHOWN)} more`, "", "", "", "", "", ""], { className: "part" }]);
  return rows;
}
$("filter").addEventListener("input", () => latest && showTopics(latest));

// -- groups

const groupCards = new Map();
function groupCard(name, kind) {
  const card = make("div", undefined, "card table group"), head = make("div"), line = make("p");
  const told = make("span", undefined, "quiet"), lag = make("span", undefined, "lag");
  line.append(told, lag);
  head.append(make("h3", name), line);
  card.dataset.kind = kind;
  const table = make("table"), body = make("tbody"), top = make("tr");
  for (const [text, className] of [["topic", ""], ["partition", ""], ["owner", ""], ["offset", "number"], ["end", "number"], ["lag", "number"]]) top.append(make("th", text, className));
  const thead = make("thead");
  thead.append(top);
  table.append(thead, body);
  card.append(head, table);
  card.dataset.group = name;
  return { card, told, lag, rows: new Rows(body, ["name", "", "name", "number", "number", "number"]) };
}

// Why the lag of a partition is marked; "": it is not. Some lag is normal: only one that nobody works off is trouble.
const offsets = new Map(); // of owned partitions with a lag: the offset, since when the page sees it, and when it saw it last
function standing(group, row) {
  if (row.lag === null) return "the broker does not say where the partition ends";
  if (!row.lag) return "";
  if (!row.owner) return "no member reads this partition";
  const key = `${group}/${row.topic}/${row.broker}-${row.partition}`, nowMs = Date.now(), last = offsets.get(key);
  const sinceMs = last?.offset === row.offset && last.owner === row.owner ? last.sinceMs : nowMs;
  offsets.set(key, { offset: row.offset, owner: row.owner, sinceMs, seenMs: nowMs });
  return nowMs - sinceMs < STUCK_MS ? "" : `the stored offset has not moved for ${whole(Math.floor((nowMs - sinceMs) / 1000))} s`;
}
function forgetOffsets() {
  const nowMs = Date.now();
  for (const [key, { seenMs }] of offsets) if (seenMs < nowMs - STUCK_MS) offsets.delete(key);
}

// The lag of a group, and whether it is marked. seen: [[row, why]]
function lagOf(group, seen) {
  const total = (rows) => lagText(group, rows.reduce((one, [row]) => one + row.lag, 0));
  const known = seen.filter(([row]) => row.lag !== null), unknown = seen.length - known.length, marked = known.filter(([, why]) => why);
  const ownerless = marked.filter(([row]) => !row.owner), stuck = marked.filter(([row]) => row.owner);
  if (!known.length) return ["lag not known", seen.length > 0];
  const share = (rows) => (total(rows) === total(known) ? "all of it" : `${total(rows)} of it`);
  const text = [
    `${unknown ? "lag at least" : "lag"} ${total(known)}`,
    ownerless.length && `${share(ownerless)} without an owner`,
    stuck.length && `${share(stuck)} at offsets that do not move`,
    unknown && `not known of ${whole(unknown)} partition${unknown === 1 ? "" : "s"}`,
  ];
  return [text.filter(Boolean).join(", "), unknown + marked.length > 0];
}

function showGroups(found, error) {
  if (error) return;
  const left = new Map(groupCards);
  for (const group of found.groups) {
    if (!groupCards.has(group.name)) {
      groupCards.set(group.name, groupCard(group.name, group.kind));
      $("groups").append(groupCards.get(group.name).card);
    }
    left.delete(group.name);
    const { told, lag, rows } = groupCards.get(group.name);
    const idle = group.idleMembers.length ? `, without partitions: ${group.idleMembers.join(", ")}` : "";
    setText(told, `${whole(group.members.length)} member${group.members.length === 1 ? "" : "s"}${idle}, `);
    const seen = group.partitions.map((row) => [row, standing(group.name, row)]);
    const [text, isBad] = lagOf(group, seen);
    setText(lag, text);
    lag.classList.toggle("bad", isBad);
    rows.show(seen.slice(0, PARTITIONS_SHOWN).map(([row, why]) => [
      `${row.topic}/${row.broker}-${row.partition}`,
      [row.topic, placeName(row), row.owner || "no owner", whole(row.offset), whole(row.end), row.lag === null ? "not known" : lagText(group, row.lag)],
      { titles: [row.topic, "broker-partition", row.owner, undefined, "", why], bad: !why ? [] : row.owner ? [5] : [2, 5] },
    ]));
  }
  forgetOffsets();
  for (const [name, { card }] of left) {
    card.remove();
    groupCards.delete(name);
  }
  $("no-groups").hidden = found.groups.length > 0;
  setText($("no-groups"), latest && !latest.hasGroups ? (latest.own ? "No groups of today's Kafka. Those of Kafka 0.7 are in ZooKeeper, which this broker does not use." : "Groups are in ZooKeeper.")
    : found.problems.length ? "The groups are not known." : "No groups.");
  groupProblems = found.problems;
}
let groupProblems = [];

// -- messages

let looked = null;
function openMessages(topic) {
  const parts = latest.topics.find((each) => each.name === topic)?.partitions ?? [];
  looked = { topic, next: null };
  setText($("messages-title"), topic);
  $("messages-partition").replaceChildren(...parts.map((part) => {
    const option = make("option", placeName(part));
    option.value = `${Math.max(part.broker, 0)}/${part.partition}`; // without a leader, the answer says so
    return option;
  }));
  $("messages-offset").value = "";
  $("messages-list").replaceChildren();
  $("messages").showModal();
  look();
}

async function look(offset = $("messages-offset").value.trim()) {
  const [broker, partition] = $("messages-partition").value.split("/");
  if (partition === undefined) return;
  const query = new URLSearchParams({ topic: looked.topic, broker, partition, count: $("messages-count").value || "20", offset: offset || "last" });
  const wanted = looked;
  setText($("messages-note"), "looking …");
  try {
    const found = await ask(`/api/messages?${query}`);
    if (looked !== wanted) return;
    looked.found = found;
    looked.next = found.nextOffset;
    showMessages();
  } catch (error) {
    if (looked === wanted) setText($("messages-note"), error.message);
  }
}

function showMessages() {
  const found = looked.found;
  if (!found) return;
  const about = found.messages.length ? `${whole(found.messages.length)} message${found.messages.length === 1 ? "" : "s"} from offset ${found.offset} to ${found.nextOffset}` : "no messages here";
  setText($("messages-note"), `${about}; the partition has ${found.start} to ${found.end}${found.problem ? `. ${found.problem}` : ""}`);
  $("messages-list").replaceChildren(...found.messages.map(messageItem));
}

function messageItem(message) {
  const item = make("li"), payload = decoded(message.payload ?? "");
  if (message.moreThan) {
    item.append(make("p", `more than ${whole(message.moreThan)} are inside the same compressed entry`));
    return item;
  }
  if (message.timestampMs !== undefined) return recordItem(item, message);
  const cut = payload.length < message.size ? `, the first ${whole(payload.length)} are shown` : "";
  const codec = message.codec ? `, inside ${message.codec}` : "";
  const [text, note] = asChosen(payload);
  item.append(make("p", `offset ${message.offset}, ${whole(message.size)} bytes${cut}${codec}, checksum ${message.checksum}${note}`));
  item.append(make("pre", text, chosen() === "hex" ? "hex" : ""));
  return item;
}

const decoded = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
const chosen = () => $("messages-form-of").value;
const asChosen = (data) => (chosen() === "hex" ? [hex(data), ""] : chosen() === "json" ? asJson(data) : asText(data));

// A record of today's Kafka: time, key, headers and value, of which all but the time may be absent.
function recordItem(item, record) {
  const codec = record.codec ? `, inside ${record.codec}` : "";
  const date = new Date(record.timestampMs);
  const time = record.timestampMs < 0 ? "no time" : Number.isNaN(date.getTime()) ? `time ${record.timestampMs}` : date.toISOString();
  const head = `offset ${record.offset}, ${time}`;
  if (record.control) {
    item.append(make("p", `${head}, end of a transaction: ${record.marker || "of an unknown type"}`));
    return item;
  }
  const about = (name, data, size) => (data === null ? `no ${name}` : `${name} of ${whole(size)} bytes${decoded(data).length < size ? `, the first ${whole(decoded(data).length)} are shown` : ""}`);
  const [value, note] = record.payload === null ? ["", ""] : asChosen(decoded(record.payload));
  item.append(make("p", `${head}, ${about("key", record.key, record.keySize)}, ${about("value", record.payload, record.size)}${codec}${note}`));
  if (record.key !== null) item.append(make("pre", asChosen(decoded(record.key))[0], chosen() === "hex" ? "key hex" : "key"));
  for (const [name, data] of record.headers) item.append(make("p", `${visible(name)}: ${data === null ? "null" : asText(decoded(data))[0]}`, "header"));
  if (record.headerCount > record.headers.length) item.append(make("p", `${whole(record.headerCount - record.headers.length)} headers more`));
  if (record.payload !== null) item.append(make("pre", value, chosen() === "hex" ? "hex" : ""));
  return item;
}

// Characters that would turn the line around, or hide, are shown as what they are.
const visible = (text) => text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`);
function asText(payload) {
  try {
    return [visible(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(payload)), ""];
  } catch {
    return [visible(new TextDecoder("utf-8", { ignoreBOM: true }).decode(payload)), ", not all of it is UTF-8"];
  }
}
function asJson(payload) {
  const [text] = asText(payload);
  try {
    return [visible(JSON.stringify(JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(payload)), null, 2)), ""];
  } catch {
    return [text, ", no JSON"];
  }
}
function hex(payload) {
  const lines = [];
  for (let at = 0; at < payload.length; at += 16) {
    const part = [...payload.subarray(at, at + 16)];
    const digits = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits}  ${part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("")}`);
  }
  return lines.join("\n");
}

$("messages-form").addEventListener("submit", (event) => { event.preventDefault(); look(); });
$("messages-partition").addEventListener("change", () => { $("messages-offset").value = ""; look(); });
$("messages-form-of").addEventListener("change", showMessages);
$("messages-next").addEventListener("click", () => { if (looked?.next != null) { $("messages-offset").value = String(looked.next); look(); } });
$("messages-close").addEventListener("click", () => $("messages").close());
$("messages").addEventListener("close", () => { looked = null; $("messages-list").replaceChildren(); });

// -- all of it

function showState(state, error) {
  const status = $("status");
  if (error) {
    status.className = "bad";
    setText(status, `no answer: ${error.message}`);
    return;
  }
  latest = state;
  document.body.dataset.kind = state.kind;
  const down = state.brokers.filter((broker) => broker.problem).length;
  const problems = [...new Set([...state.problems, ...groupProblems])];
  const told = [down && `${whole(down)} of ${whole(state.brokers.length)} brokers in trouble`, problems.length && `${whole(problems.length)} problem${problems.length === 1 ? "" : "s"}`].filter(Boolean);
  status.className = told.length ? "bad" : "good";
  setText(status, [new Date(state.timeMs).toLocaleTimeString(), ...told].join(", "));
  setText($("version"), state.version);
  $("pages").hidden = !state.hasTasks;
  showTraffic(state);
  showPressure(state.own);
  showBrokers(state);
  showMap(state.cluster);
  showTopics(state);
  $("problems").hidden = !problems.length;
  $("problems").replaceChildren(...problems.map((text) => make("li", text)));
  rates.forget(state.timeMs);
}

poll("/api/state", STATE_MS, showState);
poll("/api/groups", GROUPS_MS, showGroups);
