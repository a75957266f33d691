// The page of jobs and their tasks, as containers have published them in two topics. Names are put on the page with textContent and nothing else.

import { $, Rates, Rows, bytes, count, make, poll, setText, whole } from "/elements.js";
import { drawGraph } from "/graph.js";

const TASKS_MS = 2000;
const rates = new Rates();
const many = (number, word) => `${whole(number)} ${word}${number === 1 ? "" : "s"}`;
const perSecond = (value) => (value === undefined ? "–" : `${count(value)}/s`);
const sum = (values) => values.reduce((one, other) => one + other, 0);

// A sum of lags, of which some may not be known.
function lagText(lags) {
  const known = lags.filter((each) => each !== null);
  return !lags.length ? "–" : known.length === lags.length ? whole(sum(known)) : known.length ? `at least ${whole(sum(known))}` : "not known";
}
function age(ms) {
  const seconds = Math.round(ms / 1000);
  return seconds < 120 ? `${seconds} s` : seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

// -- jobs

const isLive = (container) => !container.failure && !container.isOverdue;
const isRestoring = (task) => task.stores.some((store) => store.toRestore !== null);
function startingText(tasks) {
  const restoring = tasks.filter(isRestoring).length, starting = tasks.filter((task) => task.phase === "starting").length - restoring;
  return [restoring && `${many(restoring, "task")} restoring`, starting > 0 && `${many(starting, "task")} starting`].filter(Boolean);
}

// What to look at first, and whether it is trouble.
function stateOf(job) {
  const live = job.containers.filter(isLive), taskCount = sum(live.map((each) => each.taskCount)), wanted = job.config?.tasks ?? null;
  const failed = job.containers.filter((each) => each.failure).length, overdue = job.containers.filter((each) => each.isOverdue).length;
  const troubles = [
    failed && `${many(failed, "container")} failed`,
    overdue && `${many(overdue, "container")} without a report`,
    live.length && wanted !== null && taskCount < wanted && `${whole(wanted - taskCount)} of ${many(wanted, "task")} not reported`,
  ].filter(Boolean);
  const rest = live.length ? startingText(live.flatMap((each) => each.tasks)) : troubles.length ? [] : ["no container"];
  return [[...troubles, ...rest].join(", ") || "running", troubles.length > 0];
}

const handledOf = (job) => sum(job.containers.filter(isLive).map((each) => each.handledCount));
function rateOf(key, container, handled) {
  return isLive(container) ? rates.of(key, container.writtenAtMs, handled) : undefined;
}

const jobRows = new Rows($("jobs"), ["name", "number", "number", "number", "number", "number", "number", "wrap"]);
function showJobs(jobs) {
  const chosen = chosenName(jobs);
  jobRows.show(jobs.map((job) => {
    const live = job.containers.filter(isLive), [state, isBad] = stateOf(job);
    const each = live.map((one) => rateOf(`${job.name}/${one.container}`, one, one.handledCount)).filter((one) => one !== undefined);
    const lags = live.flatMap((one) => one.tasks.flatMap((task) => task.partitions.map((part) => part.lag)));
    return [job.name,
      [null, whole(live.length), whole(sum(live.map((one) => one.taskCount))), whole(handledOf(job)), perSecond(each.length ? sum(each) : undefined), whole(sum(live.map((one) => one.failedCount))), lagText(lags), state],
      {
        bad: isBad ? [7] : [],
        made: (row) => row.firstChild.append(make("a")),
        update: (row) => {
          const link = row.firstChild.firstChild;
          setText(link, job.name);
          link.href = `#${encodeURIComponent(job.name)}`;
          link.title = job.name;
          job.name === chosen ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current");
        },
      }];
  }));
}

// The job of the address; without one, the first.
function chosenName(jobs) {
  let name = "";
  try {
    name = decodeURIComponent(location.hash.slice(1));
  } catch { /* no name */ }
  return jobs.some((job) => job.name === name) ? name : jobs[0]?.name;
}

// -- pictures

const topicNode = (topic) => ({ id: `topic ${topic.topic}`, kind: "topic", title: topic.topic, note: topic.partitionCount === null ? topic.kind : `${topic.kind}, ${many(topic.partitionCount, "partition")}` });
const isInput = (topic) => topic.kind === "input" || topic.kind === "broadcast input";
const isRead = (topic) => isInput(topic) || topic.kind === "repartition";

// A graph in which each node, and each edge, is there once.
class Graph {
  constructor() {
    this.nodes = new Map();
    this.edges = new Map();
  }
  node(node) {
    if (!this.nodes.has(node.id)) this.nodes.set(node.id, node);
    return node.id;
  }
  edge(from, to) { this.edges.set(JSON.stringify([from, to]), { from, to }); }
  show(into, about) {
    const nodes = [...this.nodes.values()], edges = [...this.edges.values()].filter(({ from, to }) => this.nodes.has(from) && this.nodes.has(to));
    const text = JSON.stringify([nodes, edges]);
    if (shown.get(into) === text) return; // what is selected stays
    shown.set(into, text);
    drawGraph(into, nodes, edges, about);
  }
}
const shown = new Map();

function planGraph(config) {
  const graph = new Graph(), job = `job ${config.job}`;
  const holder = (name) => `step ${name}`, first = (test) => (config.steps.length ? config.steps.filter(test).map((step) => holder(step.name)) : [job]);
  if (!config.steps.length) graph.node({ id: job, kind: "job", title: config.job, note: config.tasks === null ? "job" : many(config.tasks, "task") });
  const isLoop = (step) => step.reads !== null && step.reads === step.writes; // a repartition is its topic
  const places = new Map(config.steps.map((step) => [step.name, isLoop(step) ? `topic ${step.writes}` : holder(step.name)]));
  for (const step of config.steps) {
    if (!isLoop(step)) graph.node({ id: holder(step.name), kind: "step", title: step.name, note: [step.kind, step.details].filter(Boolean).join(", ") });
    for (const parent of step.parents) if (places.has(parent)) graph.edge(places.get(parent), places.get(step.name));
  }
  for (const topic of config.topics) {
    const id = graph.node(topicNode(topic));
    if (topic.store !== null) {
      const store = graph.node({ id: `store ${topic.store}`, kind: "store", title: topic.store, note: `store, ${topic.engine}` });
      for (const from of first((step) => step.stores.includes(topic.store))) graph.edge(from, store);
      graph.edge(store, id);
      continue;
    }
    if (isRead(topic)) for (const to of first((step) => step.reads === topic.topic && !isLoop(step))) graph.edge(id, to);
    const gives = (step) => (topic.kind === "dead letters" ? step.reads !== null : step.writes === topic.topic);
    if (!isInput(topic)) for (const from of first((step) => gives(step) && !isLoop(step))) graph.edge(from, id);
  }
  return graph;
}

function allGraph(jobs) {
  const graph = new Graph(), read = new Set(jobs.flatMap(({ config }) => config?.topics.filter(isInput).map((topic) => topic.topic) ?? []));
  for (const { config } of jobs) {
    if (!config) continue;
    const job = graph.node({ id: `job ${config.job}`, kind: "job", title: config.job, note: config.tasks === null ? "job" : many(config.tasks, "task") });
    for (const topic of config.topics) {
      if (topic.kind !== "output" && !isInput(topic) && !read.has(topic.topic)) continue; // of this job alone
      const id = graph.node({ ...topicNode(topic), note: "topic" });
      isInput(topic) ? graph.edge(id, job) : graph.edge(job, id);
    }
  }
  return graph;
}

const listed = (topics, kinds) => topics.filter((topic) => kinds.includes(topic.kind)).map((topic) => topic.topic).join(", ") || "nothing";
const aboutPlan = (config) => `job ${config.job} reads ${listed(config.topics, ["input", "broadcast input"])}; writes ${listed(config.topics, ["output", "dead letters"])}; keeps ${config.topics.map((topic) => topic.store).filter((store) => store !== null).join(", ") || "no store"}`;

// -- one job

const containerRows = new Rows($("containers"), ["name", "name", "number", "number", "number", "number", "number", "wrap"]);
const taskRows = new Rows($("tasks"), ["name", "name", "", "number", "number", "number", "number", "wrap", "wrap"]);
const standbyRows = new Rows($("standbys"), ["number", "name", "name", "wrap", "number"]);
const topicRows = new Rows($("topics"), ["", "name", "", "", "number", ""]);
const settingRows = new Rows($("settings"), ["", "wrap"]);
const open = new Set();

function showJob(job) {
  $("job").hidden = !job;
  if (!job) return;
  const config = job.config;
  setText($("job-title"), `Job ${job.name}`);
  const told = config ? [config.tasks === null ? "" : many(config.tasks, "task"), `onError=${config.onError}`, config.windowMs ? `window each ${whole(config.windowMs)} ms` : "", `configuration of ${new Date(config.writtenAtMs).toLocaleString()}`] : ["its configuration is not known"];
  if (config && config.topics.length < config.topicCount) told.push(`${whole(config.topics.length)} of ${whole(config.topicCount)} topics are shown`);
  setText($("job-sum"), told.filter(Boolean).join(", "));
  $("plan").hidden = $("config").hidden = !config;
  if (config) {
    planGraph(config).show($("plan"), aboutPlan(config));
    topicRows.show(config.topics.map((topic) => [`${topic.kind} ${topic.topic}`, [topic.kind, topic.topic, topic.key, topic.value, whole(topic.partitionCount), topic.store === null ? "" : `${topic.store}, ${topic.engine}`], { titles: ["", topic.topic] }]));
    settingRows.show([...Object.entries(config.settings), ...config.configNames.map((name) => [`config of the job: ${name}`, "not published"])].map((pair) => [pair[0], pair]));
  }
  containerRows.show(job.containers.map((each) => {
    const why = each.failure || (each.isOverdue ? `no report for ${age(each.ageMs)}: it may be dead` : startingText(each.tasks).join(", ") || "running");
    return [each.container, [each.container, each.host, whole(each.taskCount), whole(each.standbyCount), whole(each.handledCount), whole(each.commitCount), `${age(each.ageMs)} ago`, why], { titles: [each.memberId && `member ${each.memberId}`, each.host], bad: isLive(each) ? [] : [6, 7] }];
  }));
  $("no-containers").hidden = job.containers.length > 0;
  showTasks(job);
}

function storeText(store) {
  if (store.toRestore === null) return `${store.name} ${store.size === null ? "not open" : bytes(store.size)}`;
  return `${store.name} restoring, ${Math.floor((100 * store.restored) / Math.max(store.toRestore, 1))} % of ${whole(store.toRestore)}`;
}

function showTasks(job) {
  const rows = [], all = job.containers.flatMap((container) => container.tasks.map((task) => [task, container]));
  for (const [task, container] of all.sort(([one], [other]) => one.task - other.task)) {
    const key = `${job.name}/${container.container}/${task.task}`, live = isLive(container);
    const phase = live ? task.phase : `${task.phase}, ${age(container.ageMs)} ago`;
    rows.push([key,
      [null, container.container, phase, whole(task.handledCount), perSecond(rateOf(key, container, task.handledCount)), whole(task.failedCount), lagText(task.partitions.map((part) => part.lag)), task.stores.map(storeText).join("; "), Object.entries(task.counters).filter(([, number]) => number).map(([name, number]) => `${name} ${whole(number)}`).join(", ")],
      { bad: live ? [] : [2], titles: ["", container.container], made: (row) => row.firstChild.append(foldOf(key)), update: (row) => {
        const fold = row.firstChild.firstChild;
        setText(fold, String(task.task));
        fold.setAttribute("aria-label", `task ${task.task}, its partitions`);
        fold.setAttribute("aria-expanded", String(open.has(key)));
      } }]);
    if (!open.has(key)) continue;
    for (const part of task.partitions) rows.push([`${key} ${part.topic}-${part.partition}`, [`${part.topic}-${part.partition}`, "", "", "", "", "", whole(part.lag), part.position === null ? "position not known" : `at ${whole(part.position)}${part.end === null ? "" : ` of ${whole(part.end)}`}`, ""], { className: "part", titles: [`${part.topic}-${part.partition}`] }]);
  }
  taskRows.show(rows);
  showStandbys(job);
}

function showStandbys(job) {
  const all = job.containers.flatMap((container) => container.standbys.map((each) => [each, container]));
  $("standbys-part").hidden = !all.length;
  standbyRows.show(all.sort(([one], [other]) => one.task - other.task).map(([each, container]) => {
    const state = each.lag === null ? "stores are opened" : each.isCurrent ? "up to date" : "behind";
    return [`${container.container}/${each.task}`,
      [whole(each.task), container.container, container.host, isLive(container) ? state : `${state}, ${age(container.ageMs)} ago`, whole(each.lag)],
      { titles: ["", container.container, container.host], bad: isLive(container) ? [] : [3] }];
  }));
}

function foldOf(key) {
  const fold = make("button", undefined, "fold");
  fold.type = "button";
  fold.addEventListener("click", () => {
    open.has(key) ? open.delete(key) : open.add(key);
    if (latest) showAll(latest);
  });
  return fold;
}

// -- all of it

let latest = null;
function showAll(found) {
  showJobs(found.jobs);
  $("no-jobs").hidden = found.jobs.length > 0;
  setText($("no-jobs"), !found.isKnown ? "The jobs are not known." : found.isComplete ? "No container of tasks has published a job here." : "Reading the reports of containers …");
  allGraph(found.jobs).show($("all"), `jobs ${found.jobs.map((job) => job.name).join(", ")}, with the topics that they read and write`);
  $("all").hidden = $("all").hidden || found.jobs.length < 2;
  const chosen = chosenName(found.jobs);
  showJob(found.jobs.find((job) => job.name === chosen));
}

function show(found, error) {
  const status = $("status");
  if (error) {
    status.className = "bad";
    setText(status, `no answer: ${error.message}`);
    return;
  }
  latest = found;
  const bad = found.jobs.filter((job) => stateOf(job)[1]).length;
  const told = [bad && `${many(bad, "job")} in trouble`, found.problems.length && many(found.problems.length, "problem"), !found.isComplete && found.isKnown && "reading"].filter(Boolean);
  status.className = bad || found.problems.length ? "bad" : "good";
  setText(status, [new Date(found.timeMs).toLocaleTimeString(), ...told].join(", "));
  setText($("version"), found.version);
  $("problems").hidden = !found.problems.length;
  $("problems").replaceChildren(...found.problems.map((text) => make("li", text)));
  showAll(found);
  rates.forget(found.timeMs - 600000);
}

window.addEventListener("hashchange", () => latest && showAll(latest));
poll("/api/tasks", TASKS_MS, show);
