// SPDX-License-Identifier: Apache-2.0
'use strict';
// One stage: what the model computes and what the ranks compute, from the lineage that is relied on
// down to the claim, as two columns of operators.

const MOST_NODES = 160;

function producersOf(graph) {
  if (!graph.producers) {
    graph.producers = new Map();
    graph.nodes.forEach((node, n) => node[NODE.out].forEach(t => {
      if (!graph.producers.has(t)) graph.producers.set(t, []);
      graph.producers.get(t).push(n);
    }));
  }
  return graph.producers;
}

// Back from `goals` to `given`: the nodes, in the order of the file, and whether there are more.
function modelNodes(data, goals, given) {
  const seen = new Set(), nodes = new Set(), queue = [...goals];
  while (queue.length && nodes.size < MOST_NODES) {
    const t = queue.shift();
    if (seen.has(t)) continue;
    seen.add(t);
    if (given.has(t)) continue;
    for (const n of producersOf(data.model).get(t) || []) {
      nodes.add(n);
      queue.push(...data.model.nodes[n][NODE.in]);
    }
  }
  return {nodes: [...nodes].sort((a, b) => a - b), more: queue.some(t => !seen.has(t))};
}

// Of all programs; a message or a collective leads to its partners by their `comm`.
function planNodes(data, goals, given) {
  if (!data.byComm) {
    data.byComm = new Map();
    data.programs.forEach((program, p) => program.nodes.forEach((node, n) => {
      if (node[NODE.comm] === undefined) return;
      if (!data.byComm.has(node[NODE.comm])) data.byComm.set(node[NODE.comm], []);
      data.byComm.get(node[NODE.comm]).push([p, n]);
    }));
  }
  const key = ([p, i]) => p + ':' + i;
  const seen = new Set(), nodes = new Map(), queue = [...goals];
  while (queue.length && nodes.size < MOST_NODES) {
    const at = queue.shift();
    if (seen.has(key(at))) continue;
    seen.add(key(at));
    if (given.has(key(at))) continue;
    const reach = [...(producersOf(data.programs[at[0]]).get(at[1]) || []).map(n => [at[0], n])];
    while (reach.length && nodes.size < MOST_NODES) {
      const ref = reach.shift();
      if (nodes.has(key(ref))) continue;
      nodes.set(key(ref), ref);
      const node = data.programs[ref[0]].nodes[ref[1]];
      queue.push(...node[NODE.in].map(t => [ref[0], t]));
      if (node[NODE.comm] !== undefined) reach.push(...data.byComm.get(node[NODE.comm]));
    }
  }
  return {nodes: [...nodes.values()].sort((a, b) => a[0] - b[0] || a[1] - b[1]), more: queue.some(at => !seen.has(key(at)))};
}

// Boxes one below the other, with arcs from where a tensor is made to where it is read.
function operatorColumn(title, rows, select) {
  const box = make('div', {}, make('h3', {}, title));
  if (!rows.length) {
    box.append(make('p', {class: 'hint'}, 'No operators: the claim is about given tensors.'));
    return box;
  }
  const scroll = make('div', {class: 'scroll'}), step = 64, width = 560, left = 90;
  box.append(scroll);
  const svg = d3.select(scroll).append('svg').attr('width', width + left + 10).attr('height', rows.length * step + 10).attr('role', 'list').attr('aria-label', title);
  const made = new Map();
  rows.forEach((row, i) => row.makes.forEach(t => made.set(t, i)));
  const edges = [];
  rows.forEach((row, i) => row.reads.forEach(t => { if (made.has(t) && made.get(t) !== i) edges.push([made.get(t), i]); }));
  svg.selectAll('path').data(edges).enter().append('path').attr('class', 'edge').attr('d', ([from, to]) => {
    const y0 = from * step + 30, y1 = to * step + 24, bend = left - Math.min(left - 6, 14 + 9 * Math.abs(to - from));
    return `M${left},${y0} C${bend},${y0} ${bend},${y1} ${left},${y1}`;
  });
  const cut = (text, most) => printable(text, most);
  const group = svg.selectAll('g').data(rows).enter().append('g').attr('transform', (r, i) => `translate(${left},${i * step + 4})`)
    .attr('class', r => 'node' + (r.given ? ' given' : '') + (r.wrong ? ' wrong' : '') + (r.named ? ' named' : '')).attr('tabindex', (r, i) => i === 0 ? 0 : -1).attr('role', 'listitem')
    .attr('aria-label', r => cut(r.label + (r.is ? ', found to be ' + r.is : '') + (r.wrong ? ', wrong' : ''), 300));
  group.append('rect').attr('class', 'op').attr('width', width - 4).attr('height', step - 8).attr('rx', 5);
  group.append('text').attr('x', 10).attr('y', 17).text(r => cut(r.label, 74));
  group.append('text').attr('class', 'label').attr('x', 10).attr('y', 33).text(r => cut(r.detail, 78));
  group.append('text').attr('class', 'is').attr('x', 10).attr('y', 49).text(r => r.is ? cut((r.wrong ? '✗ ' : '= ') + r.is, 78) : '');
  const choose = (element, row) => {
    svg.selectAll('.node').classed('selected', false);
    d3.select(element).classed('selected', true);
    select(row);
  };
  group.on('click', function (row) { this.focus(); choose(this, row); });
  group.on('focus', function (row) { choose(this, row); });
  group.on('keydown', function (row) {
    const all = group.nodes(), i = all.indexOf(this), to = {ArrowDown: i + 1, ArrowUp: i - 1, Home: 0, End: all.length - 1}[d3.event.key];
    if (to === undefined || !all[to]) return;
    d3.event.preventDefault();
    all[to].focus();
    all[to].scrollIntoView({block: 'nearest'});
  });
  return box;
}

function showStage(data, stage, back) {
  const section = document.getElementById('stage'), report = data.report;
  const entry = data.lineage[stage[STAGE.entry]] || [-1, '', '', []];
  const defects = report.defects.concat(report.suspects), mine = defects.map((d, i) => [d, i]).filter(([d]) => d.entry === stage[STAGE.entry]);
  const cause = report.causes.find(c => c.defects.some(i => mine.some(([, j]) => i === j))) ||
    report.causes.find(c => c.compared && c.compared.tensor === stage[STAGE.tensor]);
  const found = new Map(cause ? cause.found.map(f => [f.tensor, f]) : []), named = new Set(cause ? cause.nodes.map(n => n.pointer) : []);
  const assumed = stage[STAGE.assumptions].map(e => data.lineage[e]).filter(e => e);
  const givenLogical = new Set(assumed.map(e => e[ENTRY.tensor])), givenLocal = new Set(assumed.flatMap(e => e[ENTRY.locals].map(([p, t]) => p + ':' + t)));
  const detail = make('div', {class: 'detail', id: 'detail', 'aria-live': 'polite'}, make('p', {class: 'hint'}, 'Select an operator to see its tensors and numbers.'));
  const tensorLine = (graph, t) => { const x = graph.tensors[t]; return printable(x[TENSOR.name]) + ' [' + x[TENSOR.shape].join(', ') + ']' + (x[TENSOR.kind] ? ' ' + x[TENSOR.kind] : ''); };
  const rowOf = (graph, pointer, prefix) => (node, where) => {
    const makes = node[NODE.out].map(t => graph.tensors[t][TENSOR.name]), is = prefix === null ? null : makes.map(t => found.get(t)).find(f => f);
    return {node, graph, pointer: pointer + where, label: node[NODE.op] + ' → ' + (makes.join(', ') || 'nothing'),
      detail: pointer + where + (node[NODE.loc] ? '  ' + node[NODE.loc] : ''), makes: node[NODE.out].map(t => prefix + ':' + t), reads: node[NODE.in].map(t => prefix + ':' + t),
      is: is ? is.is || 'nothing that is known' : '', wrong: Boolean(is && is.wrong), named: named.has(pointer + where), found: is};
  };
  const model = modelNodes(data, entry[ENTRY.tensor] >= 0 ? [entry[ENTRY.tensor]] : [], givenLogical);
  const plan = planNodes(data, entry[ENTRY.locals], givenLocal);
  const modelRows = model.nodes.map(n => rowOf(data.model, '/nodes/', null)(data.model.nodes[n], n));
  const planRows = plan.nodes.map(([p, n]) => {
    const program = data.programs[p], places = program.places;
    return rowOf(program, places ? '' : '/programs/' + p + '/nodes/', p)(program.nodes[n], places ? places[n] : n);
  });
  const select = row => {
    const numbers = row.found && row.found.numbers ? matrixOf(row.found.tensor, row.found.numbers) : null;
    const attributes = row.node[NODE.attributes] >= 0 ? data.attributes[row.node[NODE.attributes]] : '';
    detail.replaceChildren(make('h3', {}, printable(row.label)), make('dl', {},
      make('dt', {}, 'place'), make('dd', {}, make('code', {}, printable(row.detail))),
      make('dt', {}, 'reads'), make('dd', {class: 'name'}, row.node[NODE.in].map(t => make('div', {}, tensorLine(row.graph, t)))),
      make('dt', {}, 'makes'), make('dd', {class: 'name'}, row.node[NODE.out].map(t => make('div', {}, tensorLine(row.graph, t)))),
      attributes && attributes !== '{}' ? [make('dt', {}, 'attributes'), make('dd', {}, make('code', {}, printable(attributes)))] : [],
      row.node[NODE.comm] !== undefined ? [make('dt', {}, 'members'), make('dd', {}, printable(row.node[NODE.comm] + ' ' + row.node[NODE.members]))] : [],
      row.node[NODE.microbatch] ? [make('dt', {}, 'microbatch'), make('dd', {}, row.node[NODE.microbatch] === '*' ? 'each' : row.node[NODE.microbatch])] : [],
      row.is ? [make('dt', {}, 'found to be'), make('dd', {class: row.wrong ? 'wrong' : null}, printable(row.is))] : []),
      numbers || make('p', {class: 'hint'}, row.found ? 'Its numbers are not known.' : 'Numbers are kept of the failing stage on one rank.'));
  };
  const example = mine.map(([d]) => d.counterexample).find(x => x);
  section.replaceChildren(
    make('h2', {}, 'Stage ', make('code', {}, printable(stage[STAGE.tensor])), ' ', make('span', {class: 'badge ' + stage[STAGE.verdict]}, stage[STAGE.verdict])),
    make('p', {class: 'hint'}, make('button', {type: 'button', onclick: back}, 'Back to the list (Escape)')),
    make('dl', {}, make('dt', {}, 'claim'), make('dd', {}, make('code', {}, printable(entry[ENTRY.text], 1000))),
      make('dt', {}, 'place'), make('dd', {}, make('code', {}, '/lineage/' + stage[STAGE.entry])),
      data.reasons[stage[STAGE.reason]] ? [make('dt', {}, 'because'), make('dd', {}, printable(data.reasons[stage[STAGE.reason]], 1000))] : [],
      make('dt', {}, 'relies on'), make('dd', {class: 'name'}, assumed.length ? [...assumed.slice(0, 6).map(e => make('div', {}, make('code', {}, printable(e[ENTRY.text], 160)))),
        assumed.length > 6 ? 'and ' + (assumed.length - 6) + ' more' : null] : 'nothing')),
    ...mine.map(([d]) => make('p', {class: 'wrong'}, sentence(d.message))),
    ...(cause && comparedView(cause.compared) ? [comparedView(cause.compared)] : []),
    ...(example ? [counterexampleView(example)] : []),
    make('div', {class: 'columns'}, operatorColumn('Model' + (model.more ? ', the nearest ' + MOST_NODES : ''), modelRows, select),
      operatorColumn('Plan' + (plan.more ? ', the nearest ' + MOST_NODES : ''), planRows, select)), detail);
  section.hidden = false;
  section.focus();
  section.scrollIntoView({block: 'start'});
}
