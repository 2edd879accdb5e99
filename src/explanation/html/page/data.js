// SPDX-License-Identifier: Apache-2.0
'use strict';
// The page's data, and how text gets into the page: always as text, never as markup.

// Columns of the tables that src/explanation/html/data.cpp writes.
const TENSOR = {name: 0, shape: 1, kind: 2, perMicrobatch: 3};
const NODE = {op: 0, in: 1, out: 2, loc: 3, attributes: 4, microbatch: 5, comm: 6, members: 7, peer: 8};
const ENTRY = {tensor: 0, role: 1, text: 2, locals: 3};
const STAGE = {tensor: 0, role: 1, entry: 2, verdict: 3, method: 4, reason: 5, cls: 6, assumptions: 7};

async function loadData() {
  const coded = document.getElementById('data').textContent;
  const bytes = Uint8Array.from(atob(coded), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return JSON.parse(await new Response(stream).text());
}

// Names come from files that anyone may have written: control characters and marks that turn the
// direction of writing are shown by their codes, and the middle of what is very long is left out.
const LONGEST = 300;
function printable(text, most = LONGEST) {
  let shown = String(text);
  if (shown.length > most) shown = shown.slice(0, most / 2) + '…' + shown.slice(-most / 2);
  return shown.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g,
    c => '\\u' + c.charCodeAt(0).toString(16).padStart(4, '0'));
}

// An element: make('p', {class: 'hint'}, 'text', child, ...).
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(key, value === true ? '' : value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) element.append(child);
  return element;
}

// Text in which `names` stand in backquotes, as sentences of causes have them.
function sentence(text) {
  return printable(text, 800).split('`').map((part, i) => i % 2 ? make('code', {}, part) : part);
}

function ranksText(ranks) {
  const sorted = [...new Set(ranks)].sort((a, b) => a - b), pieces = [];
  for (let i = 0; i < sorted.length;) {
    let last = i;
    while (last + 1 < sorted.length && sorted[last + 1] === sorted[last] + 1) ++last;
    pieces.push(last > i ? sorted[i] + '–' + sorted[last] : String(sorted[i]));
    i = last + 1;
  }
  return pieces.length > 12 ? pieces.slice(0, 12).join(', ') + ' and more' : pieces.join(', ');
}

// A node as its author knows it: operator, place in a source, what it makes; its pointer last.
function nodeLine(data, node) {
  const at = /^\/(?:programs\/(\d+)\/)?nodes\/(\d+)$/.exec(node.pointer);
  const graph = !at ? null : node.in === 'model' ? data.model : data.programs[Number(at[1])];
  const row = graph && !graph.places ? graph.nodes[Number(at[2])] : null;
  const makes = row && row[NODE.op] === node.op ? row[NODE.out].map(t => graph.tensors[t][TENSOR.name]).join(', ') : '';
  return make('div', {}, make('strong', {}, printable(node.op)), node.loc ? [' at ', make('code', {}, printable(node.loc))] : null,
    makes ? [' makes ', make('code', {}, printable(makes, 80))] : null, ' ', make('span', {class: 'pointer'}, printable((node.in === 'model' ? 'model ' : '') + node.pointer)));
}
