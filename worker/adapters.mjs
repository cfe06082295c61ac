// Which GPU the player gets. A browser that tells two apart by power is asked for both; which one
// reads memory faster, as decoding does most of the time, is measured once and remembered.

import { memory } from "./memory.mjs";
import { within } from "./waits.mjs";

/** @typedef {GPUPowerPreference} Preference */

const REQUEST_SECONDS = 60; // for an adapter, and for its device
const MEASURE_SECONDS = 10; // for a measurement, its device included
const READ_BYTES = 1 << 26; // of one measurement
const REPEAT = 4;
const READ = `
@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {
  var sum = vec4<u32>();
  for (var i = id.x; i < arrayLength(&x); i += 64u * n.x) { sum += x[i]; }
  y[id.x] = sum.x + sum.y + sum.z + sum.w;
}`;
const GROUPS = 1024;

/** An adapter and a device of it; null where the browser gives no adapter. */
export async function openDevice() {
  const powerPreference = await preferred(navigator.gpu);
  for (let tries = 1; ; tries++) {
    const asked = Promise.resolve(navigator.gpu?.requestAdapter({ powerPreference }));
    const adapter = await within(REQUEST_SECONDS, asked, "Asking for a GPU");
    if (!adapter) return null;
    try {
      const given = adapter.requestDevice(wanted(adapter));
      return { adapter, device: await within(REQUEST_SECONDS, given, "Asking for its device") };
    } catch (error) {
      if (tries > 1) throw error; // else the GPU may have been lost in between
    }
  }
}

/** @param {GPUAdapter} adapter @returns {GPUDeviceDescriptor} */
function wanted({ features, limits }) {
  const useful = /** @type {GPUFeatureName[]} */ (["subgroups", "timestamp-query"]);
  return {
    requiredFeatures: useful.filter((name) => features.has(name)),
    requiredLimits: {
      maxBufferSize: limits.maxBufferSize,
      maxStorageBufferBindingSize: limits.maxStorageBufferBindingSize,
      maxComputeWorkgroupStorageSize: limits.maxComputeWorkgroupStorageSize,
      maxStorageBuffersPerShaderStage: Math.min(10, limits.maxStorageBuffersPerShaderStage),
    },
  };
}

/** What Python needs to know of an adapter. @param {GPUAdapter} adapter */
export function describe(adapter) {
  const { info, features, limits } = adapter;
  return {
    name: [info.vendor, info.architecture, info.description].filter(Boolean).join(" "),
    software: isSoftware(adapter),
    subgroup: features.has("subgroups") ? lanes(info) : 0,
    max_binding_bytes: limits.maxStorageBufferBindingSize,
    max_buffer_bytes: limits.maxBufferSize,
    workgroup_bytes: limits.maxComputeWorkgroupStorageSize,
  };
}

/** How many lanes each subgroup has at least. On Metal, where no adapter tells, Chrome said 4 for a long
 * time; Apple's own GPUs have 32. @param {GPUAdapterInfo} info */
function lanes({ vendor, subgroupMinSize }) {
  return vendor === "apple" ? Math.max(32, subgroupMinSize) : subgroupMinSize;
}

/** @param {GPUAdapter} adapter */
function isSoftware({ info }) {
  return info.isFallbackAdapter || /swiftshader|llvmpipe/i.test(info.architecture + info.description);
}

/** @param {GPUAdapter} adapter */
function nameOf({ info }) {
  return [info.vendor, info.architecture, info.device, info.description].join("|");
}

/** How to ask for the better adapter. @param {GPU | undefined} gpu @returns {Promise<Preference>} */
export async function preferred(gpu) {
  const choices = /** @type {Preference[]} */ (["high-performance", "low-power"]);
  const asked = choices.map((powerPreference) => gpu?.requestAdapter({ powerPreference }));
  const [fast, frugal] = await within(REQUEST_SECONDS, Promise.all(asked), "Asking for a GPU");
  if (!fast || !frugal || nameOf(fast) === nameOf(frugal)) return choices[0];
  if (isSoftware(fast) !== isSoftware(frugal)) return choices[Number(isSoftware(fast))];
  const key = `adapter ${nameOf(fast)} ${nameOf(frugal)}`;
  const kept = await memory.get(key);
  const known = choices.find((choice) => choice === kept);
  if (known) return known;
  const times = [await readingTime(fast), await readingTime(frugal)];
  const better = choices[Number(times[1] < times[0])];
  if (times.some(Number.isFinite)) await memory.set(key, better);
  return better;
}

/** Milliseconds that reading READ_BYTES takes; infinite if it fails, or never ends.
 * @param {GPUAdapter} adapter */
async function readingTime(adapter) {
  const given = adapter.requestDevice();
  try {
    const time = given.then((device) =>
      Promise.race([timed(device), device.lost.then(() => Infinity)]));
    return await within(MEASURE_SECONDS, time, "Measuring a GPU");
  } catch {
    return Infinity;
  } finally {
    given.then((device) => device.destroy(), () => {}); // also one that comes too late
  }
}

/** @param {GPUDevice} device */
async function timed(device) {
  const usage = GPUBufferUsage.STORAGE;
  const module = device.createShaderModule({ code: READ });
  const pipeline = await device.createComputePipelineAsync({ layout: "auto", compute: { module } });
  const buffers = [READ_BYTES, 4 * 64 * GROUPS].map((size) => device.createBuffer({ size, usage }));
  const bindGroup = device.createBindGroup({
    layout: pipeline.getBindGroupLayout(0),
    entries: buffers.map((buffer, binding) => ({ binding, resource: { buffer } })),
  });
  let best = Infinity;
  for (let i = 0; i <= REPEAT; i++) {
    const started = performance.now();
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, bindGroup);
    pass.dispatchWorkgroups(GROUPS);
    pass.end();
    device.queue.submit([encoder.finish()]);
    await device.queue.onSubmittedWorkDone();
    if (i) best = Math.min(best, performance.now() - started); // the first one also compiles
  }
  return best;
}
