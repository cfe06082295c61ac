/**
 * How long a GPU takes for the plans of an encoder, by its own clock, and each of their kernels: the
 * plans come from kernels.json beside, with every variant of the products. POSTs to `/log`.
 */

/** @type {typeof import("../../../worker/gpu.mjs")} */
const { Gpu } = await import(new URL("../worker/gpu.mjs", import.meta.url).href);

const REPEAT = 20;
const ROUNDS = 5;

/** @param {object} body */
const post = (body) => fetch("/log", {
  method: "POST",
  headers: { "content-type": "application/json" },
  body: JSON.stringify(body),
});

try {
  const { buffers, slots, wire, written, names } = await (await fetch("kernels.json")).json();
  const gpu = await Gpu.request();
  if (!gpu) throw new Error("There is no adapter.");
  await post({ gpu: JSON.parse(gpu.describe()) });
  await gpu.allocate(JSON.stringify(buffers));
  await gpu.allocate(JSON.stringify(slots));
  await gpu.compile(JSON.stringify(wire));
  for (const [name, base64] of written) {
    gpu.write(name, 0, Uint8Array.from(atob(base64), (sign) => sign.charCodeAt(0)));
  }
  for (const name of names) {
    await gpu.run(name, 1, 1, 0, 0);
    const times = [];
    for (let i = 0; i < ROUNDS; i++) times.push((await gpu.time(name, 1, REPEAT)) / REPEAT);
    await post({ plan: name, ms: Math.min(...times), kernels: JSON.parse(await gpu.profile(name, 1)) });
  }
} catch (error) {
  await post({ error: String(/** @type {any} */ (error).message ?? error) });
}
await post({ done: 1 });
