// Perfetto's own engine, as the wasm that its UI runs, asked with SQL under node.
//   node trace_processor.js WEB_DIST_VERSION_DIR TRACE QUERY...
//   node trace_processor.js WEB_DIST_VERSION_DIR
// Prints one line of JSON: seconds to load, the engine's memory, and for each query the columns, the rows and the
// error, if there was one. Without a trace, for each line of input: a JSON list of the trace and its queries.
// The engine's worker bundle runs here with a stand-in for the worker's globals; requests follow Perfetto's
// TraceProcessorRpc (protos/perfetto/trace_processor/trace_processor.proto): append data, finalize, query.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");
const readline = require("readline");
const [, , dist, ...asked] = process.argv;

// an uncaught error would print the whole minified bundle
const fail = (error) => {
  console.error(String((error && error.stack) || error).replace(/^.{400,}$/gm, "...").slice(0, 2000));
  process.exit(1);
};
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
const request = (method, ...fields) =>
  field(1, Buffer.concat([field(1, sequence++), field(2, method), ...fields]));
const APPEND = 1, FINALIZE = 2, QUERY = 3, RESET = 7;

// [number, value] of each field; a varint as BigInt, the rest as bytes
function* fields(data) {
  let at = 0;
  const number = () => {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = data[at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
    }
  };
  while (at < data.length) {
    const key = Number(number());
    const kind = key & 7;
    if (kind === 0) { yield [key >> 3, BigInt.asIntN(64, number())]; continue; }
    const size = kind === 2 ? Number(number()) : kind === 1 ? 8 : 4;
    yield [key >> 3, data.subarray(at, at + size)];
    at += size;
  }
}
const packed = (data) => {
  const out = [];
  for (let at = 0; at < data.length; ) {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = data[at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) break;
    }
    out.push(BigInt.asIntN(64, value));
  }
  return out;
};

// TraceProcessorRpc.query_result 203, QueryResult: column_names 1, error 2, batch 3 { cells 1, varint_cells 2, float64_cells 3, string_cells 5 }
const answer = (reply) => {
  const columns = [], rows = [];
  let error = null, held = [];
  for (const [stream, message] of fields(reply)) {
    if (stream !== 1) continue;
    for (const [number, result] of fields(message)) {
      if (number !== 203) continue;
      for (const [part, body] of fields(result)) {
        if (part === 1) columns.push(body.toString());
        if (part === 2) error = body.toString();
        if (part !== 3) continue;
        let kinds = [], numbers = [], floats = [], texts = [];
        for (const [cell, data] of fields(body)) {
          if (cell === 1) kinds = packed(data).map(Number);
          if (cell === 2) numbers = packed(data);
          if (cell === 3) for (let at = 0; at < data.length; at += 8) floats.push(data.readDoubleLE(at));
          if (cell === 5) texts = data.toString().split("\0");
        }
        for (const kind of kinds) {  // 1 null, 2 varint, 3 float64, 4 string
          held.push(kind === 2 ? numbers.shift().toString() : kind === 3 ? floats.shift() : kind === 4 ? texts.shift() : null);
          if (held.length === columns.length) { rows.push(held); held = []; }
        }
      }
    }
  }
  return { columns, rows, error };
};

let started = process.hrtime.bigint();
const port = { onmessage: null, postMessage: (reply) => { replies.push(Buffer.from(reply)); } };
let replies = [];
// The bundle runs in this realm (a vm context has a TypeError of its own, which emscripten's addFunction
// does not recognise), with the globals of a worker and without node's.
const node = process;
const bytes = (url) => {
  const held = fs.readFileSync(path.join(dist, path.basename(String(url))));
  return held.buffer.slice(held.byteOffset, held.byteOffset + held.length);
};
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
globalThis.onmessage({ data: port, ports: [port] });

const ready = () => new Promise((resolve) => {
  const poll = () => (port.onmessage ? resolve() : setTimeout(poll, 5));
  poll();
});
const send = async (data) => {
  const before = replies.length;
  port.onmessage({ data: new Uint8Array(data) });
  while (replies.length === before) await new Promise((resolve) => setTimeout(resolve, 1));
};

const load = async (trace, queries) => {
  const handle = fs.openSync(trace, "r");
  const piece = Buffer.alloc(32 << 20);
  for (let got; (got = fs.readSync(handle, piece)) > 0; ) await send(request(APPEND, field(101, piece.subarray(0, got))));
  fs.closeSync(handle);
  await send(request(FINALIZE));
  const loaded = Number(process.hrtime.bigint() - started) / 1e9;
  const answers = [];
  for (const query of queries) {
    replies = [];
    await send(request(QUERY, field(103, field(1, Buffer.from(query)))));
    answers.push(answer(Buffer.concat(replies)));
  }
  return JSON.stringify({ load_s: loaded, rss: process.memoryUsage().rss, answers }) + "\n";
};

(async () => {
  await ready();
  if (asked.length) {
    const [trace, ...queries] = asked;
    return process.stdout.write(await load(trace, queries), () => process.exit(0));
  }
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [trace, ...queries] = JSON.parse(line);
    started = process.hrtime.bigint();
    await send(request(RESET));
    process.stdout.write(await load(trace, queries));
  }
  process.exit(0);
})();
