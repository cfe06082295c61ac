/**
 * Prints, as Markdown, the public API that type declarations describe: `node api_page.mjs FOLDER`.
 *
 * FOLDER has client.d.mts and what it refers to. The module's comment comes first, then its
 * classes, then all types that these mention, each once.
 */

import { readFileSync, readdirSync } from "node:fs";
import { join, resolve } from "node:path";

import { SyntaxKind } from "typescript/unstable/ast";
import { API } from "typescript/unstable/sync";

const MANY = 6; // fields that a type has as another one has: they are named, not told again
const CLASSES = ["Octavo", "Conversation", "Stream", "OctavoError"];
const folder = resolve(process.argv[2]);

const api = new API({ cwd: folder });
const beside = readdirSync(folder).filter((file) => file.endsWith(".d.mts") && file !== "client.d.mts");
const paths = ["client.d.mts", ...beside.sort(), "worker/protocol.d.mts"].map((f) => join(folder, f));
const snapshot = api.updateSnapshot({ openFiles: paths });
const { program, checker } = snapshot.getDefaultProjectForFile(paths[0]);
const exported = paths.map((path) =>
  checker.getExportsOfModule(checker.getSymbolAtLocation(program.getSourceFile(path))));
/** Symbols by the names that the client has for them, and those of other modules by their own. */
const symbols = new Map();
/** What the client calls a type of another module. */
const renamed = new Map();
/** Types in the order in which they are mentioned. */
const mentioned = new Set();
/** Which type's table has a field, by where the field is declared. */
const tables = new Map();

for (const symbol of exported.flat().toReversed()) {
  if (nodeOf(symbol).kind === SyntaxKind.ExportSpecifier) continue; // declared elsewhere
  const name = /= import\("[^"]*"\)\.(\w+);$/.exec(nodeOf(symbol).getText())?.[1];
  if (name && name !== symbol.name) renamed.set(name, symbol.name);
  // what is only another name for it has the comments and fields of the other
  symbols.set(symbol.name, (name && symbols.get(name)) ?? symbol);
}

const lines = [...introduction(), ...CLASSES.flatMap(classLines), "## Types", ""];
for (const name of mentioned) {
  if (!CLASSES.includes(name)) lines.push(...typeLines(name)); // which may mention more
}
console.log(lines.join("\n").trimEnd());
api.close();

function introduction() {
  const comment = /^\/\*\*([^]*?)\*\//.exec(readFileSync(paths[0], "utf8"))[1];
  const text = mentioning(comment.replaceAll(/^ *\* ?/gm, "").trim());
  const code = (indented) => `\`\`\`js\n${indented.replaceAll(/^ {4}/gm, "").trimEnd()}\n\`\`\`\n`;
  return [text.replaceAll(/(?:^ {4}.*\n?)+/gm, code).trimEnd(), ""];
}

/** @param {string} name */
function classLines(name) {
  const symbol = symbols.get(name);
  const lines = [`## ${name}`, "", ...commentOf(symbol)];
  const isConstructor = (member) => member.name === "__constructor";
  const isHidden = symbol.getJsDocTags(checker).some((tag) => tag.name === "hideconstructor");
  const found = [...symbol.getMembers().values()].filter((member) =>
    !/#|@/.test(member.name) && // private, or named by a symbol
    nodeOf(member).kind !== SyntaxKind.TypeParameter && !(isHidden && isConstructor(member)));
  for (const member of [...found.filter(isConstructor), ...found.filter((m) => !isConstructor(m))]) {
    const node = nodeOf(member);
    const title = isConstructor(member) ? `new ${name}` : member.name;
    const functions = node.type ? functionsOf([title], node.type) : [];
    if (!functions.length) functions.push([title, typeText(node).replace("constructor(", `${title}(`)]);
    for (const [path, signatures] of functions) {
      lines.push(`### ${path}`, "", ...commentOf(member));
      lines.push("```ts", signatures, "```", "", ...parameterLines(member));
    }
  }
  return lines;
}

/**
 * Functions that a property is or has within it, such as `chat.completions.create`, with their
 * signatures.
 *
 * @param {string[]} path
 * @param {any} type of the property
 * @returns {[string, string][]}
 */
function functionsOf(path, type) {
  if (type.members) {
    return type.members.flatMap(({ name, type: inner }) =>
      inner ? functionsOf([...path, name.getText()], inner) : []);
  }
  const called = symbols.get(type.typeName?.getText());
  const signatures = called && nodeOf(called).type?.members?.filter(({ name }) => !name);
  if (!signatures?.length) return [];
  const title = path.join(".");
  return [[title, signatures.map((signature) => title.split(".").at(-1) + typeText(signature)).join("\n")]];
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
  const { type } = nodeOf(symbol);
  const head = [`### ${name}`, "", ...commentOf(symbol)];
  const isTable = [SyntaxKind.TypeLiteral, SyntaxKind.IntersectionType].includes(type.kind);
  if (!isTable) return [...head, "```ts", `type ${name} = ${typeText(type)}`, "```", ""];
  const fields = checker.getPropertiesOfType(checker.getDeclaredTypeOfSymbol(symbol));
  const toldIn = (other) => fields.filter((field) => tables.get(placeOf(field)) === other);
  const others = [...new Set(fields.map((field) => tables.get(placeOf(field))))].filter(
    (other) => other && toldIn(other).length >= MANY);
  for (const other of others) {
    const names = toldIn(other).map((field) => `\`${field.name}\``).join(", ");
    head.push(`As in [${other}](#${other.toLowerCase()}): ${names}.`, "");
  }
  const rows = fields.filter((field) => !others.includes(tables.get(placeOf(field))));
  if (!rows.length) return head;
  for (const field of rows) tables.set(placeOf(field), name);
  return [...head, "| field | type | |", "|---|---|---|", ...rows.map(row), ""];
}

/** @param {any} field */
function row(field) {
  const { type, postfixToken } = nodeOf(field);
  const name = `${field.name}${postfixToken ? "?" : ""}`;
  return `| \`${name}\` | \`${cell(typeText(type))}\` | ${cell(commentOf(field).join(" "))} |`;
}

/** @param {any} field */
function placeOf({ valueDeclaration, declarations }) {
  const { path, index } = valueDeclaration ?? declarations[0];
  return `${path} ${index}`;
}

/** @param {any} symbol */
function nodeOf(symbol) {
  return (symbol.valueDeclaration ?? symbol.declarations[0]).resolve();
}

/** @param {any} symbol */
function commentOf(symbol) {
  const text = symbol.getDocumentationComment(checker).trim();
  return text ? [text, ""] : [];
}

/**
 * The text of a type without comments.
 *
 * @param {any} node
 */
function typeText(node) {
  const text = node.getText().replaceAll(/\/\*\*[^]*?\*\//g, "").replaceAll(/import\("[^"]*"\)\./g, "");
  return mentioning(oneLine(text).replace(/;$/, ""));
}

/**
 * The text with the names that the client has for types; they are remembered.
 *
 * @param {string} text
 */
function mentioning(text) {
  return text.replaceAll(/\b[A-Z]\w+/g, (name) => {
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
