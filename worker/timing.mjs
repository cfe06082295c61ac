// How long the GPU takes, by its own clock.

import { memoryError, scoped } from "./buffers.mjs";

/**
 * @typedef {import("./gpu.mjs").Dispatch} Dispatch
 * @typedef {object} Player what is needed of the player
 * @property {GPUDevice} device
 * @property {import("./buffers.mjs").Buffers} buffers
 * @property {(descriptor: GPUBufferDescriptor) => Promise<GPUBuffer>} create
 * @property {<T>(promise: Promise<T>) => Promise<T>} alive
 * @property {(part: import("./readback.mjs").Part) => Promise<Uint8Array>} copyOf
 * @property {(pass: GPUComputePassEncoder, plan: Dispatch[], tokens: number) => void} encode
 */

/** GPU time by dispatch label: [label, count, ms]. Empty without timestamp queries.
 * @param {Player} player @param {Dispatch[]} plan @param {number} tokens */
export async function profile(player, plan, tokens) {
  if (!player.device.features.has("timestamp-query")) return [];
  const times = await timestamps(player, plan.length, (encoder, querySet) => {
    for (const [i, dispatch] of plan.entries()) {
      const timestampWrites = { querySet, beginningOfPassWriteIndex: 2 * i, endOfPassWriteIndex: 2 * i + 1 };
      const pass = encoder.beginComputePass({ timestampWrites });
      player.encode(pass, [dispatch], tokens);
      pass.end();
    }
  });
  /** @type {Map<string, [string, number, number]>} */
  const rows = new Map();
  for (const [i, { label }] of plan.entries()) {
    const row = rows.get(label) ?? [label, 0, 0];
    row[1] += 1;
    row[2] += times[i];
    rows.set(label, row);
  }
  return [...rows.values()];
}

/** Milliseconds of dispatches in one pass; the device has timestamp queries.
 * @param {Player} player @param {Dispatch[]} step @param {number} tokens @returns {Promise<number>} */
export async function passTime(player, step, tokens) {
  const [ms] = await timestamps(player, 1, (encoder, querySet) => {
    const timestampWrites = { querySet, beginningOfPassWriteIndex: 0, endOfPassWriteIndex: 1 };
    const pass = encoder.beginComputePass({ timestampWrites });
    player.encode(pass, step, tokens);
    pass.end();
  });
  return ms;
}

/** Milliseconds of `count` passes, whose timestamps `encode` writes pair by pair.
 * @param {Player} player @param {number} count
 * @param {(encoder: GPUCommandEncoder, querySet: GPUQuerySet) => void} encode
 * @returns {Promise<number[]>} */
async function timestamps(player, count, encode) {
  const { device } = player;
  const usage = GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC;
  const times = await player.create({ label: "times", size: 16 * count, usage });
  const { made: querySet, failed } = scoped(device, () =>
    device.createQuerySet({ type: "timestamp", count: 2 * count }));
  const error = await player.alive(failed);
  if (!querySet || error) throw memoryError(error, 16 * count, player.buffers.held);
  const encoder = device.createCommandEncoder();
  encode(encoder, querySet);
  encoder.resolveQuerySet(querySet, 0, 2 * count, times, 0);
  device.queue.submit([encoder.finish()]);
  const ns = new BigUint64Array((await player.copyOf({ source: times, offset: 0, bytes: 16 * count })).buffer);
  times.destroy();
  querySet.destroy();
  return Array.from({ length: count }, (_, i) => Number(ns[2 * i + 1] - ns[2 * i]) / 1e6);
}
