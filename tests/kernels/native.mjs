// Runs a Python module of the tests in Pyodide under Node, with the site's own NumPy and engine:
//   node tests/kernels/native.mjs MODULE
// prints what its `main()` returns.
import { readFileSync, readdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { loadPyodide } from "../../node_modules/pyodide/pyodide.mjs";

const root = new URL("../../", import.meta.url);
const wheels = new URL("dist/pyodide/", root);

const pyodide = await loadPyodide({
  indexURL: fileURLToPath(new URL("node_modules/pyodide/", root)),
  stdout: (line) => console.error(line),
});
for (const name of readdirSync(wheels)) {
  if (!/^(numpy|octavo|jinja2|markupsafe)-.*\.whl$/.test(name)) continue;
  pyodide.unpackArchive(new Uint8Array(readFileSync(new URL(name, wheels))), "wheel");
}
pyodide.FS.mkdirTree("/repository/tests");
const tests = { root: fileURLToPath(new URL("tests/", root)) };
pyodide.FS.mount(pyodide.FS.filesystems.NODEFS, tests, "/repository/tests");
pyodide.runPython("import sys; sys.path.append('/repository'); sys.dont_write_bytecode = True");
const answer = await pyodide.pyimport(process.argv[2]).main();
process.stdout.write(answer);
