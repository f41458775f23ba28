// Loads a trace with Perfetto's trace_processor.wasm under node and counts its slices.
//   node perfetto_wasm.js WEB_DIST_VERSION_DIR TRACE
// The engine's own worker bundle runs here with a stand-in for the worker's globals; requests follow
// Perfetto's TraceProcessorRpc (append data, finalize, query). Prints one line of JSON.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");
const [, , dist, trace] = process.argv;

// an uncaught error would print the whole minified bundle
const fail = (error) => { console.error(String((error && error.stack) || error).replace(/^.{400,}$/gm, "...").slice(0, 2000)); process.exit(1); };
process.on("uncaughtException", fail);
process.on("unhandledRejection", fail);

const varint = (value) => {
  const out = [];
  for (let n = BigInt(value); ; n >>= 7n) {
    if (n < 128n) { out.push(Number(n)); return Buffer.from(out); }
    out.push(Number((n & 127n) | 128n));
  }
};
const field = (number, body) => typeof body === "number"
  ? Buffer.concat([varint(number << 3), varint(body)])
  : Buffer.concat([varint((number << 3) | 2), varint(body.length), body]);
let sequence = 0;
const request = (method, ...fields) => field(1, Buffer.concat([field(1, sequence++), field(2, method), ...fields]));
const APPEND = 1, FINALIZE = 2, QUERY = 3;

const started = process.hrtime.bigint();
const seconds = () => Number(process.hrtime.bigint() - started) / 1e9;
const port = { onmessage: null, postMessage: (reply) => { replies.push(Buffer.from(reply)); } };
let replies = [];
// The bundle runs in this realm (a vm context has a TypeError of its own, which emscripten's addFunction
// does not recognise), with the globals of a worker and without node's.
const node = process;
const bytes = (url) => { const b = fs.readFileSync(path.join(dist, path.basename(String(url)))); return b.buffer.slice(b.byteOffset, b.byteOffset + b.length); };
Object.assign(globalThis, {
  self: globalThis,
  location: { href: "file://" + dist + "/engine_bundle.js", protocol: "file:", host: "" },
  WorkerGlobalScope: function () {},
  XMLHttpRequest: class { open(_, url) { this.url = url; } send() { this.response = bytes(this.url); } },
  onmessage: null,
  process: undefined,
});
vm.runInThisContext(fs.readFileSync(path.join(dist, "engine_bundle.js"), "utf8"));
globalThis.process = node;
const entry = globalThis.onmessage;
entry({ data: port, ports: [port] });

const ready = () => new Promise((resolve) => {
  const poll = () => (port.onmessage ? resolve() : setTimeout(poll, 5));
  poll();
});
const send = async (bytes) => {
  const before = replies.length;
  port.onmessage({ data: new Uint8Array(bytes) });
  while (replies.length === before) await new Promise((resolve) => setTimeout(resolve, 1));
};

(async () => {
  await ready();
  const handle = fs.openSync(trace, "r");
  const piece = Buffer.alloc(32 << 20);
  for (let got; (got = fs.readSync(handle, piece)) > 0; ) await send(request(APPEND, field(101, piece.subarray(0, got))));
  await send(request(FINALIZE));
  const loaded = seconds();
  replies = [];
  await send(request(QUERY, field(103, field(1, Buffer.from("select count(*) as n, sum(dur) as d from slice")))));
  const text = Buffer.concat(replies).toString("hex");
  process.stdout.write(JSON.stringify({ load_s: loaded, rss: process.memoryUsage().rss, reply_hex: text }) + "\n");
  process.exit(0);
})();
