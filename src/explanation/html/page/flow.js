// SPDX-License-Identifier: Apache-2.0
'use strict';
// A cause at a glance: one sentence, and the data flow around it, the model's beside the plan's. The
// boxes are the facts of Cause::found and the model's operators; pointers are for those who look
// further.

const FLOW_BOXES = 6;

// Where a node is, as its author knows it: "/programs/0/nodes/3 (linear at mlp.py:12)" is "linear at
// mlp.py:12".
function withoutPointers(text) {
  return text.replace(/\/(?:programs\/\d+\/)?nodes\/\d+ \(([^()]*)\)/g, '$1');
}

// What is wrong, without what it was found by: what stands behind the first colon that is in no
// name.
function headline(cause) {
  let inName = false, from = 0;
  for (let i = 0; i < cause.sentence.length; ++i) {
    if (cause.sentence[i] === '`') inName = !inName;
    if (!inName && cause.sentence.startsWith(': ', i)) { from = i + 2; break; }
  }
  let text = withoutPointers(cause.sentence.slice(from));
  const loc = cause.nodes.length ? cause.nodes[0].loc : '';
  if (loc && !text.includes(loc)) text += ' (at ' + loc + ')';
  return text[0].toUpperCase() + text.slice(1);
}

// Of all rows the ones that `goals` come from, the nearest, in their order. A row makes some names
// and reads some.
function nearestRows(rows, goals, most = FLOW_BOXES) {
  const made = new Map();
  rows.forEach((row, i) => row.makes.forEach(t => made.set(t, i)));
  const taken = new Set(), queue = goals.filter(t => made.has(t)).map(t => made.get(t));
  while (queue.length && taken.size < most) {
    const i = queue.shift();
    if (taken.has(i)) continue;
    taken.add(i);
    rows[i].reads.forEach(t => { if (made.has(t)) queue.push(made.get(t)); });
  }
  return {rows: [...taken].sort((a, b) => a - b).map(i => rows[i]), more: queue.some(i => !taken.has(i))};
}

// Not many more than the plan's.
function modelRows(data, cause, most) {
  const tensors = data.model.tensors, goal = cause.compared ? cause.compared.tensor : cause.tensors[0];
  const names = node => field => node[field].map(t => tensors[t][TENSOR.name]);
  const rows = data.model.nodes.map(node => {
    const of = names(node);
    return {name: of(NODE.out).join(', '), by: node[NODE.op] + (node[NODE.loc] ? ' at ' + node[NODE.loc] : ''), from: of(NODE.in), makes: of(NODE.out), reads: of(NODE.in)};
  });
  const near = nearestRows(rows, [goal], most);
  near.rows.forEach(row => { row.right = row.makes.includes(goal); if (row.right) row.name = goal; row.is = row.right ? 'what the ranks have to hold' : ''; });
  return near;
}

function planRows(cause) {
  const rows = cause.found.map(f => {
    const given = !f.node || !f.node.op;   // the failing stage begins with it
    return {name: f.tensor, by: given ? 'as lineage has it' : f.node.op + (f.node.loc ? ' at ' + f.node.loc : ''), from: f.from, makes: [f.tensor], reads: f.from,
      wrong: f.wrong, given, is: f.is ? (f.wrong ? 'is ' : '= ') + f.is.replaceAll('`', '') : f.wrong ? 'is nothing of the model' : ''};
  });
  const wrong = cause.found.filter(f => f.wrong).map(f => f.tensor);
  const near = nearestRows(rows, wrong.length ? wrong : rows.slice(-1).flatMap(r => r.makes));
  return near;
}

// Boxes one below the other, with an arrow for each tensor that one makes and another reads.
function flowColumn(title, {rows, more}) {
  const width = 440, left = 46, high = 62, step = 84, top = more ? 24 : 4;
  const box = make('figure', {class: 'flow'}, make('figcaption', {}, title));
  const svg = d3.select(box).append('svg').attr('viewBox', `0 0 ${width} ${top + rows.length * step - (step - high) + 6}`).attr('role', 'img')
    .attr('aria-label', printable(title + ': ' + rows.map(r => r.name + ' by ' + r.by + (r.is ? ', ' + r.is : '')).join('; '), 600));
  const made = new Map(), y = i => top + i * step;
  rows.forEach((row, i) => row.makes.forEach(t => made.set(t, i)));
  const edges = rows.flatMap((row, i) => row.reads.filter(t => made.has(t) && made.get(t) < i).map(t => [made.get(t), i]));
  svg.selectAll('path').data(edges).enter().append('path').attr('class', 'arrow').attr('d', ([from, to]) => {
    if (to === from + 1) return `M${width / 2},${y(from) + high} L${width / 2},${y(to) - 2} m-5,-7 l5,7 l5,-7`;
    const bend = Math.max(4, left - 12 * (to - from));
    return `M${left},${y(from) + high / 2} C${bend},${y(from) + high / 2} ${bend},${y(to) + 14} ${left - 2},${y(to) + 14} m-7,-5 l7,5 l-7,5`;
  });
  if (more) svg.append('text').attr('class', 'label').attr('x', width / 2).attr('y', 14).attr('text-anchor', 'middle').text('⋮');
  const group = svg.selectAll('g').data(rows).enter().append('g').attr('transform', (r, i) => `translate(${left},${y(i)})`)
    .attr('class', r => 'node' + (r.wrong ? ' wrong' : '') + (r.right ? ' right' : '') + (r.given ? ' given' : ''));
  group.append('rect').attr('class', 'op').attr('width', width - left - 2).attr('height', high).attr('rx', 6);
  const line = (at, cls, text) => group.append('text').attr('class', cls).attr('x', 10).attr('y', at).text(text);
  line(19, 'name', r => printable(r.name, 42));
  line(36, 'label', r => printable(r.by, 46));
  line(53, 'is', r => printable(r.is || (r.from.length ? 'from ' + r.from.join(', ') : ''), 46));
  group.append('title').text(r => printable(`${r.name}\n${r.by}\nreads ${r.from.join(', ') || 'nothing'}\n${r.is}`, 600));
  return box;
}

function flowPicture(data, cause) {
  if (!cause.found.length) return null;
  const plan = planRows(cause);
  if (!plan.rows.length) return null;
  const model = modelRows(data, cause, Math.min(FLOW_BOXES, plan.rows.length + 1));
  const rank = cause.compared ? cause.compared.rank : cause.ranks[0];
  return make('div', {class: 'flows'}, model.rows.length ? flowColumn('The model', model) : null,
    flowColumn('The plan' + (rank === undefined ? '' : ', rank ' + rank), plan));
}
