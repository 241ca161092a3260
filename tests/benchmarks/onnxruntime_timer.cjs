// Times ONNX Runtime on one thread, for tests/benchmarks/compare.
//
//   NODE_PATH=<folder>/node_modules node onnxruntime_timer.cjs SECONDS HISTORY CANDIDATES MODEL.onnx...
//
// Prints a line of JSON for each model, {"file": ..., "ms": ..., "runs": ...}: the median time of a request. A model
// whose name says naive takes everything of the user once per candidate. Ids are random, no behavior is masked out.
'use strict';
const path = require('node:path');
const onnxruntime = require('onnxruntime-node');

const ITEMS = 10000, CATEGORIES = 1000, USER_WIDTH = 32, LEAST_RUNS = 5, WARM_UPS = 3;

function ids(below, dims) {
  const data = new BigInt64Array(dims.reduce((product, extent) => product * extent, 1));
  return new onnxruntime.Tensor('int64', data.map(() => BigInt(Math.floor(below * Math.random()))), dims);
}

function floats(draw, dims) {
  const data = new Float32Array(dims.reduce((product, extent) => product * extent, 1));
  return new onnxruntime.Tensor('float32', data.map(draw), dims);
}

// What the model is fed, by the names of its inputs.
function feeds(session, file, history, candidates) {
  const users = path.basename(file).includes('naive') ? candidates : 1;
  const all = {
    ids: () => ids(ITEMS, [1, history]),
    history_item: () => ids(ITEMS, [users, history]),
    history_category: () => ids(CATEGORIES, [users, history]),
    history_mask: () => floats(() => 1, [users, history]),
    user: () => floats(() => Math.random() - 0.5, [users, USER_WIDTH]),
    item: () => ids(ITEMS, [candidates]),
    category: () => ids(CATEGORIES, [candidates]),
  };
  return Object.fromEntries(session.inputNames.map((name) => [name, all[name]()]));
}

async function time(file, seconds, history, candidates) {
  const session = await onnxruntime.InferenceSession.create(file, {
    intraOpNumThreads: 1, interOpNumThreads: 1, executionMode: 'sequential', graphOptimizationLevel: 'all' });
  const input = feeds(session, file, history, candidates);
  for (let run = 0; run < WARM_UPS; ++run) await session.run(input);
  const taken = [];
  const end = performance.now() + 1000 * seconds;
  while (taken.length < LEAST_RUNS || performance.now() < end) {
    const before = performance.now();
    await session.run(input);
    taken.push(performance.now() - before);
  }
  taken.sort((a, b) => a - b);
  const middle = taken.length >> 1;
  const ms = taken.length % 2 ? taken[middle] : (taken[middle - 1] + taken[middle]) / 2;
  console.log(JSON.stringify({ file, ms, runs: taken.length }));
}

async function main() {
  const [seconds, history, candidates] = process.argv.slice(2, 5).map(Number);
  for (const file of process.argv.slice(5)) await time(file, seconds, history, candidates);
}

main().catch((error) => {
  console.error(`onnxruntime_timer: ${error.message}`);
  process.exitCode = 1;
});
