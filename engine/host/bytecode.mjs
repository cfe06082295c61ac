// Compiles the Python files under each folder of argv[3] to .pyc files beside them, by the Pyodide in argv[2].

import { readdirSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [pyodideFolder, work] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${pyodideFolder}/pyodide.mjs`));
const pyodide = await loadPyodide({ indexURL: pyodideFolder });
pyodide.FS.mkdir("/work");
pyodide.FS.mount(pyodide.FS.filesystems.NODEFS, { root: work }, "/work");
const compile = pyodide.runPython(`
import compileall, py_compile

def compile(name, place):
    # legacy: x.pyc in the place of x.py; unchecked: without the source there is nothing to check
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    return compileall.compile_dir(
        f"/work/{name}", quiet=1, legacy=True, invalidation_mode=mode,
        stripdir=f"/work/{name}", prependdir=place,
    )

compile
`);
// What tracebacks will say: where the file lies in the tab.
const SITE_PACKAGES = "/lib/python3.12/site-packages";
const STDLIB = "/lib/python312.zip";
const archives = readdirSync(work);
const failed = archives.filter((name) => !compile(name, name.endsWith(".zip") ? STDLIB : SITE_PACKAGES));
if (failed.length) throw new Error(`Not compiled: ${failed}`);
