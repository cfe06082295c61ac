/** How long an answer pauses when the GPU is lost: a row of the bench. */

import { add, say } from "./report.mjs";

const MESSAGES = [{ role: "user", content: "Write a very long story about a lighthouse." }];
const MOST_SECONDS = 60;

/**
 * From the last token before the loss of the GPU to the first one after it, in the middle of an
 * answer: the device is opened anew, the weights come out of the browser's cache, kernels are
 * compiled, prompt and answer so far are computed again. Only with a runner that ends the GPU
 * process once `window.wantsLoss` is true, and says so by `window.losesGpu`, there is this row.
 *
 * @param {import("./client.mjs").Octavo} client
 */
export async function measureRecovery(client) {
  await say("Losing the GPU");
  let isLost = false;
  const note = () => (isLost = true);
  client.addEventListener("recovery", note);
  Object.assign(window, { wantsLoss: true });
  try {
    const started = performance.now();
    while (!isLost && performance.now() - started < MOST_SECONDS * 1000) {
      let last = performance.now();
      const request = { messages: MESSAGES, max_tokens: 256, stream: /** @type {const} */ (true) };
      for await (const { octavo } of client.chat.completions.create(request)) {
        const pause = performance.now() - last;
        if (isLost && octavo.num_tokens) {
          const tokens = `the next token was number ${octavo.num_tokens}`;
          add("recovery_ms", "from a loss of the GPU to the next token", pause, "ms", tokens);
          return;
        }
        last = performance.now();
      }
    }
  } finally {
    client.removeEventListener("recovery", note);
  }
}
