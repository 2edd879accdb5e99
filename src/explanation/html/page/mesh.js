// SPDX-License-Identifier: Apache-2.0
'use strict';
// The ranks as a grid, and the programs of a pipeline with the messages between them.

const MOST_RANKS_DRAWN = 16384;

function meshPicture(data, affected) {
  const mesh = data.mesh, ranks = mesh.reduce((n, [, size]) => n * size, 1);
  const title = mesh.map(([name, size]) => name + '=' + size).join(' × ') || 'one rank';
  const box = make('div', {}, make('h3', {}, ranks.toLocaleString('en') + (ranks === 1 ? ' rank, ' : ' ranks, ') + title));
  if (ranks > MOST_RANKS_DRAWN) {
    box.append(make('p', {class: 'hint'}, 'Too many to be drawn one by one. Affected: ' + (affected.size ? ranksText([...affected]) : 'none')));
    return box;
  }
  // The fastest axes make a row, as long as it stays readable; the next axis goes downwards; blocks of these stand side by side.
  let columns = 1, axis = mesh.length - 1;
  for (; axis >= 0 && (columns === 1 || columns * mesh[axis][1] <= 64) && (axis > 0 || mesh.length === 1); --axis) columns *= mesh[axis][1];
  columns = Math.min(columns, 64);
  const rows = axis >= 0 ? mesh[axis][1] : Math.ceil(ranks / columns), blocks = Math.ceil(ranks / (columns * rows));
  const size = ranks <= 64 ? 44 : ranks <= 1024 ? 20 : 9, blockWidth = columns * size + 10, blockHeight = rows * size + 10;
  const perLine = Math.max(1, Math.min(blocks, Math.floor(1400 / blockWidth)));
  const position = rank => {
    const block = Math.floor(rank / (columns * rows)), inside = rank % (columns * rows);
    return [block % perLine * blockWidth + inside % columns * size + 1, Math.floor(block / perLine) * blockHeight + Math.floor(inside / columns) * size + 1];
  };
  const coordinates = rank => {
    const out = [];
    for (let a = mesh.length - 1, rest = rank; a >= 0; --a) { out.unshift(mesh[a][0] + '=' + rest % mesh[a][1]); rest = Math.floor(rest / mesh[a][1]); }
    return out.join(' ');
  };
  const svg = d3.select(box).append('svg').attr('role', 'img').attr('width', perLine * blockWidth).attr('height', Math.ceil(blocks / perLine) * blockHeight)
    .attr('aria-label', 'The mesh; affected ranks: ' + (affected.size ? ranksText([...affected]) : 'none'));
  const cell = svg.selectAll('g').data(d3.range(ranks)).enter().append('g')
    .attr('transform', r => `translate(${position(r)})`);
  cell.append('rect').attr('class', r => affected.has(r) ? 'rank affected' : 'rank').attr('width', size - 2).attr('height', size - 2).attr('rx', size > 20 ? 4 : 1);
  cell.append('title').text(r => `rank ${r} (${coordinates(r)})` + (affected.has(r) ? ', affected' : ''));
  if (size > 20) cell.append('text').attr('x', size / 2 - 1).attr('y', size / 2 + 4).attr('text-anchor', 'middle').text(r => r);
  return box;
}

// The coordinates that a program has where it names an axis: one, or a stretch of them, as [low, high).
const stretchOf = c => Array.isArray(c) ? c : [c, c + 1];

// Which ranks run a program: those that agree with the coordinates that it names.
function runsOn(data, program, rank) {
  let rest = rank;
  for (let a = data.mesh.length - 1; a >= 0; --a) {
    const [name, size] = data.mesh[a];
    if (name in program.at) {
      const [low, high] = stretchOf(program.at[name]);
      if (rest % size < low || rest % size >= high) return false;
    }
    rest = Math.floor(rest / size);
  }
  return true;
}

function pipelinePicture(data, affected, named) {
  const programs = data.programs, most = 64;
  const box = make('div', {}, make('h3', {}, programs.length + (programs.length === 1 ? ' program' : ' programs') +
    (data.microbatches > 1 ? ', ' + data.microbatches + ' microbatches' : '')));
  const shown = programs.slice(0, most), ranksAffected = [...affected].slice(0, 2000);
  const width = 150, height = 62, gap = 46, perRow = 6;
  const place = i => [i % perRow * (width + gap) + 2, Math.floor(i / perRow) * (height + 44) + 22];
  const svg = d3.select(box).append('svg').attr('role', 'img').attr('aria-label', 'Programs and the messages between them')
    .attr('width', Math.min(perRow, shown.length) * (width + gap)).attr('height', Math.ceil(shown.length / perRow) * (height + 44) + 24);
  svg.append('defs').append('marker').attr('id', 'arrow').attr('viewBox', '0 0 8 8').attr('refX', 7).attr('refY', 4).attr('markerWidth', 7).attr('markerHeight', 7)
    .attr('orient', 'auto').append('path').attr('d', 'M0,0 L8,4 L0,8 z').attr('fill', 'currentColor');
  const edges = new Map();
  shown.forEach((program, i) => program.nodes.forEach(node => {
    if (node[NODE.op] !== 'send' || !node[NODE.peer]) return;
    const to = {...program.at, ...node[NODE.peer]};
    shown.forEach((other, j) => {
      if (j === i || !Object.entries(other.at).every(([axis, c]) => !(axis in to) || stretchOf(to[axis])[0] < stretchOf(c)[1] && stretchOf(c)[0] < stretchOf(to[axis])[1])) return;
      const key = i + '>' + j;
      edges.set(key, (edges.get(key) || 0) + 1);
    });
  }));
  svg.selectAll('path.edge').data([...edges]).enter().append('path').attr('class', 'edge').attr('marker-end', 'url(#arrow)').attr('d', ([key]) => {
    const [i, j] = key.split('>').map(Number), [x0, y0] = place(i), [x1, y1] = place(j), forward = j > i, shift = forward ? -9 : 9;
    if (y0 === y1 && Math.abs(i - j) === 1)
      return forward ? `M${x0 + width},${y0 + height / 2 + shift} L${x1},${y1 + height / 2 + shift}` : `M${x0},${y0 + height / 2 + shift} L${x1 + width},${y1 + height / 2 + shift}`;
    const lift = forward ? -16 : height + 16;
    return `M${x0 + width / 2},${y0 + (forward ? 0 : height)} C${x0 + width / 2},${y0 + lift} ${x1 + width / 2},${y1 + lift} ${x1 + width / 2},${y1 + (forward ? 0 : height)}`;
  }).append('title').text(([key, n]) => { const [i, j] = key.split('>'); return `program ${i} sends to program ${j}: ${n} nodes`; });
  const group = svg.selectAll('g.program').data(shown).enter().append('g').attr('class', 'program').attr('transform', (p, i) => `translate(${place(i)})`);
  group.append('rect').attr('width', width).attr('height', height).attr('rx', 6)
    .attr('class', (p, i) => 'rank' + (named.has(i) || ranksAffected.some(r => runsOn(data, p, r)) ? ' affected' : ''));
  group.append('text').attr('x', 10).attr('y', 20).text((p, i) => 'program ' + i);
  group.append('text').attr('class', 'label').attr('x', 10).attr('y', 38).text(p => printable(Object.entries(p.at).map(([a, c]) => a + '=' + (Array.isArray(c) ? c[0] + ':' + c[1] : c)).join(' ') || 'all ranks', 18));
  group.append('text').attr('class', 'label').attr('x', 10).attr('y', 54).text(p => p.nodes.length.toLocaleString('en') + ' nodes');
  if (programs.length > most) box.append(make('p', {class: 'hint'}, 'The first ' + most + ' are drawn.'));
  return box;
}
