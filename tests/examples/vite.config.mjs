/** Builds the pages of react/, vue/ and editor/ into dist/, with the package octavo beside them. */

import vue from "@vitejs/plugin-vue";
import { defineConfig } from "vite";
import { viteStaticCopy } from "vite-plugin-static-copy";

export default defineConfig({
  plugins: [
    vue(),
    // The worker loads what lies beside it, so the package is served as it is, under /octavo/.
    viteStaticCopy({ targets: [{ src: "node_modules/octavo/*", dest: "octavo" }] }),
  ],
  build: {
    target: "es2024", // these browsers have WebGPU, too
    rollupOptions: {
      input: ["react/index.html", "vue/index.html", "editor/index.html", "editor/bench.html"],
    },
  },
});
