/**
 * Prints, as Markdown, the public API that type declarations describe: `node api_page.mjs FOLDER`.
 *
 * FOLDER has client.d.mts and what it refers to. The module's comment comes first, then its
 * classes, then all types that these mention, each once.
 */

import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";

import { API } from "typescript/unstable/sync";

const FILES = ["client.d.mts", "shapes.d.mts", "worker/protocol.d.mts"];
const CLASSES = ["Octavo", "Conversation", "OctavoError"];
const folder = resolve(process.argv[2]);

const api = new API({ cwd: folder });
const paths = FILES.map((file) => join(folder, file));
const snapshot = api.updateSnapshot({ openFiles: paths });
const { program, checker } = snapshot.getDefaultProjectForFile(paths[0]);
/** Exported symbols by name; a name of the client counts before the same one elsewhere. */
const symbols = new Map();
/** What the client calls a type of another module. */
const renamed = new Map();
const mentioned = new Set();

for (const path of paths) {
  const module = checker.getSymbolAtLocation(program.getSourceFile(path));
  for (const symbol of checker.getExportsOfModule(module)) {
    if (!symbols.has(symbol.name)) symbols.set(symbol.name, symbol);
  }
}
for (const [name, symbol] of symbols) {
  const alias = /= import\("[^"]*"\)\.(\w+);$/.exec(nodeOf(symbol).getText());
  if (!alias || alias[1] === name) continue;
  renamed.set(alias[1], name);
}

const written = CLASSES.filter((name) => symbols.has(name));
const lines = [...introduction(), ...written.flatMap(classLines), "## Types", ""];
for (const name of mentioned) {
  if (!written.includes(name)) lines.push(...typeLines(name)); // which may mention more
}
console.log(lines.join("\n").trimEnd());
api.close();

function introduction() {
  const comment = /^\/\*\*([^]*?)\*\//.exec(readFileSync(paths[0], "utf8"))[1];
  const text = comment.replaceAll(/^ *\* ?/gm, "").trim();
  return [text.replaceAll(/((?:^ {4}.*\n?)+)/gm, (code) =>
    `\`\`\`js\n${code.replaceAll(/^ {4}/gm, "").trimEnd()}\n\`\`\`\n`), ""];
}

/** @param {string} name */
function classLines(name) {
  const lines = [`## ${name}`, "", ...commentOf(symbols.get(name))];
  for (const [key, member] of symbols.get(name).getMembers()) {
    const [label, node] = [String(key), nodeOf(member)];
    if (label.includes("#")) continue;
    const isConstructor = label === "__constructor";
    const functions = isConstructor ? [] : functionsOf(label, node);
    if (functions.length) {
      for (const [title, text] of functions) {
        lines.push(`### ${title}`, "", ...commentOf(member), "```ts", text, "```", "");
      }
      continue;
    }
    lines.push(`### ${isConstructor ? `new ${name}` : label}`, "", ...commentOf(member));
    const text = typeText(node).replace("constructor(", `new ${name}(`);
    lines.push("```ts", text, "```", "", ...parameterLines(member));
  }
  return lines;
}

/**
 * Functions that lie within a property, with the types of which they are: `chat.completions.create`.
 *
 * @param {string} label
 * @param {any} node
 */
function functionsOf(label, node) {
  const found = [];
  const look = (path, type) => {
    for (const { name, type: inner } of type?.members ?? []) look([...path, name.getText()], inner);
    const called = symbols.get(type?.typeName?.getText());
    const signatures = called && nodeOf(called).type.members;
    if (!signatures || path.length === 1) return;
    const title = path.join(".");
    found.push([title, signatures.map((s) => title + typeText(s)).join("\n")]);
  };
  if (node.type?.members) look([label], node.type);
  return found;
}

/** @param {any} symbol */
function parameterLines(symbol) {
  const told = symbol.getJsDocTags(checker).filter(({ name, text }) => name === "param" && text);
  const items = told.flatMap(({ text }) => {
    const [, name, meaning] = /^(\S+)\s*([^]*)$/.exec(text);
    return meaning ? [`- \`${name}\`: ${oneLine(meaning)}`] : [];
  });
  return items.length ? [...items, ""] : [];
}

/** @param {string} name */
function typeLines(name) {
  const symbol = symbols.get(name);
  let node = nodeOf(symbol);
  const target = /= import\("[^"]*"\)\.(\w+);$/.exec(node.getText());
  if (target) node = nodeOf(protocolSymbol(target[1]));
  const head = [`### ${name}`, "", ...commentOf(target ? protocolSymbol(target[1]) : symbol)];
  const text = typeText(node.type);
  const type = checker.getDeclaredTypeOfSymbol(symbol);
  const isTable = /^\{|^Omit|&/.test(text) && !/^[^&]*\|/.test(text.replaceAll(/\{[^]*\}|<[^]*?>/g, ""));
  const fields = isTable ? checker.getPropertiesOfType(type) : [];
  if (!fields.length) return [...head, "```ts", `type ${name} = ${text}`, "```", ""];
  const rows = fields.map((field) => {
    const declared = nodeOf(field);
    const isOptional = Boolean(declared?.postfixToken ?? declared?.questionToken);
    const kind = declared?.type ? typeText(declared.type) : checker.typeToString(checker.getTypeOfSymbol(field));
    return `| \`${field.name}${isOptional ? "?" : ""}\` | \`${cell(kind)}\` | ${cell(commentOf(field).join(" "))} |`;
  });
  return [...head, "| field | type | |", "|---|---|---|", ...rows.map((row) => row.trimEnd()), ""];
}

/** @param {string} name */
function protocolSymbol(name) {
  const module = checker.getSymbolAtLocation(program.getSourceFile(paths.at(-1)));
  const all = [module, checker.getSymbolAtLocation(program.getSourceFile(paths[1]))];
  return all.flatMap((m) => checker.getExportsOfModule(m)).find((symbol) => symbol.name === name);
}

/** @param {any} symbol */
function nodeOf(symbol) {
  return (symbol.valueDeclaration ?? symbol.declarations[0])?.resolve();
}

/** @param {any} symbol */
function commentOf(symbol) {
  const text = symbol.getDocumentationComment(checker).trim();
  const isOfModule = text.includes("import {");
  return text && !isOfModule ? [text, ""] : [];
}

/**
 * The text of a type without comments, in which types have the names that the client has for them;
 * they are remembered.
 *
 * @param {any} node
 */
function typeText(node) {
  const text = node.getText().replaceAll(/\/\*\*[^]*?\*\//g, "").replaceAll(/import\("[^"]*"\)\./g, "");
  return oneLine(text).replace(/;$/, "").replaceAll(/\b[A-Z]\w+/g, (name) => {
    const known = renamed.get(name) ?? name;
    if (symbols.has(known)) mentioned.add(known);
    return known;
  });
}

/** @param {string} text */
function oneLine(text) {
  return text.replaceAll(/\s+/g, " ").trim();
}

/** @param {string} text */
function cell(text) {
  return oneLine(text).replaceAll("|", "\\|");
}
