"use strict";
// One prompt, streamed; and once a second what /metrics and /health say. Text is only ever set as text.

const $ = (id) => document.getElementById(id);
const EVERY_MS = 1000;
const HISTORY = 120;
let running = null; // the AbortController of the stream under way
let before = null; // the previous scrape: {time, samples}
const rates = [];

$("key").value = sessionStorage.getItem("key") || "";
$("key").addEventListener("change", () => { sessionStorage.setItem("key", $("key").value); start(); });

function headers(more) {
  const key = $("key").value;
  return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      yield text.slice(0, end).replace(/^data: /, "");
      text = text.slice(end + 2);
    }
  }
}

async function stream(event) {
  event.preventDefault();
  if (running) running.abort();
  const mine = (running = new AbortController());
  const output = $("output");
  output.textContent = "";
  say("");
  $("go").disabled = true;
  $("stop").disabled = false;
  const asked = performance.now();
  let first = null, tokens = 0, reason = null, done = false;
  try {
    const response = await fetch("/generate", {
      method: "POST",
      signal: mine.signal,
      headers: headers({ "Content-Type": "application/json" }),
      body: JSON.stringify({
        text: $("prompt").value,
        stream: true,
        incremental: true,
        sampling_params: { max_new_tokens: Number($("tokens").value), temperature: Number($("temperature").value) },
      }),
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const data of events(response)) {
      if (data === "[DONE]") { done = true; break; }
      const part = JSON.parse(data);
      if (part.error) throw new Error(part.error.message);
      first ??= performance.now();
      tokens = part.meta_info.completion_tokens;
      reason = part.meta_info.finish_reason || reason;
      const atEnd = output.scrollTop + output.clientHeight >= output.scrollHeight - 4;
      output.append(part.text);
      if (atEnd) output.scrollTop = output.scrollHeight;
      const seconds = (performance.now() - first) / 1000;
      say(`${tokens} tokens, ${(first - asked).toFixed(0)} ms to the first` + (seconds > 0.05 ? `, ${((tokens - 1) / seconds).toFixed(0)} tokens/s` : "") + (reason ? `, ended by ${reason.type}` : ""));
    }
    if (!done) throw new Error("the stream broke off");
  } catch (error) {
    say(mine.signal.aborted ? `stopped after ${tokens} tokens` : error.message, !mine.signal.aborted);
  } finally {
    if (running === mine) {
      running = null;
      $("go").disabled = false;
      $("stop").disabled = true;
    }
  }
}

function say(text, isBad = false) {
  $("result").textContent = text;
  $("result").className = isBad ? "bad" : "quiet";
}

// Prometheus' text format: name{label="value",...} number
function parse(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const match = /^([a-z_]+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] || "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[name] = value;
    samples.push({ name: match[1], labels, value: Number(match[3]) });
  }
  return samples;
}

const sum = (samples, name, wanted = {}) => samples
  .filter((s) => s.name === name && Object.entries(wanted).every(([label, value]) => s.labels[label] === value))
  .reduce((total, s) => total + s.value, 0);

const labelled = (samples, name, label) => [...new Set(samples.filter((s) => s.name === name).map((s) => s.labels[label]))]
  .sort((a, b) => a.localeCompare(b, "en", { numeric: true }));

function rows(id, lines) {
  $(id).replaceChildren(...lines.map((cells) => {
    const row = document.createElement("tr");
    for (const cell of cells) {
      const td = document.createElement("td");
      td.append(cell);
      row.append(td);
    }
    return row;
  }));
}

function bar(used, capacity) {
  const meter = document.createElement("meter");
  Object.assign(meter, { min: 0, max: capacity || 1, high: 0.8 * (capacity || 1), value: used });
  return meter;
}

const bytes = (n) => n < 1024 ? `${n} B` : n < 1 << 20 ? `${(n / 1024).toFixed(1)} KiB` : `${(n / (1 << 20)).toFixed(1)} MiB`;

function mean(samples, name) {
  const count = sum(samples, `${name}_count`);
  return count ? `${(1000 * sum(samples, `${name}_sum`) / count).toFixed(1)}` : "–";
}

function show(samples) {
  const now = performance.now();
  const rate = (name, wanted) => before
    ? Math.max(0, (sum(samples, name, wanted) - sum(before.samples, name, wanted)) / ((now - before.time) / 1000)) : 0;
  const total = rate("egress_generation_tokens_total");
  $("rate").textContent = total.toFixed(0);
  $("running").textContent = sum(samples, "egress_requests_running");
  $("ttft").textContent = mean(samples, "egress_time_to_first_token_seconds");
  $("gap").textContent = mean(samples, "egress_inter_token_latency_seconds");
  rates.push(total);
  if (rates.length > HISTORY) rates.shift();
  const top = Math.max(1, ...rates);
  $("line").setAttribute("points", rates.map((r, i) => `${HISTORY - rates.length + i},${29 - (28 * r) / top}`).join(" "));
  rows("shards", labelled(samples, "egress_generation_tokens_total", "shard").map((shard) => [
    shard,
    String(sum(samples, "egress_requests_running", { shard })),
    rate("egress_generation_tokens_total", { shard }).toFixed(0),
    rate("egress_steps_total", { shard }).toFixed(0),
  ]));
  rows("rings", labelled(samples, "egress_ring_capacity_bytes", "ring")
    .map((ring) => [ring, sum(samples, "egress_ring_used_bytes", { ring }), sum(samples, "egress_ring_capacity_bytes", { ring }), sum(samples, "egress_ring_full_events", { ring })])
    .filter(([, , capacity]) => capacity > 0)
    .map(([ring, used, capacity, full]) => [ring, `${bytes(used)} of ${bytes(capacity)}`, bar(used, capacity), String(full)]));
  rows("endings", [
    ...samples.filter((s) => s.name === "egress_request_success_total").map((s) => [`ended by ${s.labels.finished_reason}`, String(s.value)]),
    ...samples.filter((s) => s.name === "egress_request_failures_total").map((s) => [`failed with ${s.labels.code}`, String(s.value)]),
    ...samples.filter((s) => s.name === "egress_aborts_total").map((s) => [`aborted: ${s.labels.cause}`, String(s.value)]),
  ]);
  before = { time: now, samples };
}

async function look() {
  try {
    const health = await (await fetch("/health")).json();
    $("health").textContent = health.ready ? "ready" : health.reasons.join(", ");
    $("health").className = health.ready ? "badge ready" : "badge bad";
    const response = await fetch("/metrics", { headers: headers({}) });
    if (response.status === 401) $("key-label").hidden = false;
    if (response.ok) show(parse(await response.text()));
  } catch {
    $("health").textContent = "unreachable";
    $("health").className = "badge bad";
  }
  setTimeout(look, EVERY_MS);
}

async function start() {
  const response = await fetch("/v1/models", { headers: headers({}) });
  if (response.status === 401) $("key-label").hidden = false;
  if (response.ok) $("model").textContent = (await response.json()).data[0].id;
}

$("form").addEventListener("submit", stream);
$("stop").addEventListener("click", () => running && running.abort());
start().catch(() => {});
look();
