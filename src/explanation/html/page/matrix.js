// SPDX-License-Identifier: Apache-2.0
'use strict';
// Small matrices of numbers, and two of them side by side with what differs marked.

function numberText(x) {
  if (typeof x !== 'number') return String(x);   // "nan", "inf"
  if (Number.isInteger(x) && Math.abs(x) < 1e6) return String(x);
  const [digits, power] = x.toPrecision(6).split('e');   // no more digits than these, whatever the size
  return (digits.includes('.') ? digits.replace(/\.?0+$/, '') : digits) + (power ? 'e' + power : '');
}

function numbersDiffer(a, b) {
  if (typeof a !== 'number' || typeof b !== 'number') return a !== b;
  return Math.abs(a - b) > 1e-9 * Math.max(Math.abs(a), Math.abs(b));
}

// `block`: full, low, extent, values, row-major. `origin`: where the block's tensor begins in the
// model's; the numbers of rows and columns are counted from there. `other`: what it is compared
// with.
function matrixOf(title, block, other = null, origin = null) {
  const rank = block.extent.length;
  const columns = rank > 0 ? block.extent[rank - 1] : 1, rows = block.values.length / columns;
  const from = d => block.low[d] + (origin ? origin[d] : 0);
  const table = make('table', {class: 'matrix'});
  const whole = block.full.reduce((a, b) => a * b, 1) === block.values.length;
  table.append(make('caption', {}, printable(title, 60) + ' [' + block.full.join(', ') + ']' + (whole ? '' : ', a part')));
  const head = make('tr', {}, make('th', {}));
  for (let c = 0; c < columns; ++c) head.append(make('th', {scope: 'col'}, rank > 0 ? String(from(rank - 1) + c) : ''));
  table.append(head);
  for (let r = 0; r < rows; ++r) {
    const row = make('tr', {}, make('th', {scope: 'row'}, rank > 1 ? String(from(rank - 2) + r) : ''));
    for (let c = 0; c < columns; ++c) {
      const i = r * columns + c;
      const differs = other !== null && numbersDiffer(block.values[i], other.values[i]);
      row.append(make('td', {class: differs ? 'differs' : null, title: String(block.values[i])}, numberText(block.values[i])));
    }
    table.append(row);
  }
  return table;
}

function comparedView(compared) {
  if (!compared || !compared.model || !compared.plan) return null;
  const where = 'rank ' + compared.rank + (compared.microbatch === null ? '' : ', microbatch ' + compared.microbatch);
  return make('div', {},
    make('p', {class: 'hint'}, 'One draw of random inputs. Cells that differ are marked.'),
    make('div', {class: 'matrices'},
      matrixOf('model: ' + compared.tensor, compared.model, compared.plan, compared.at),
      matrixOf('plan: ' + where, compared.plan, compared.model, compared.at)));
}

// A counterexample of a defect: the element that differs, and the inputs for which it does, each
// tensor's elements as a matrix.
function counterexampleView(example) {
  const byTensor = new Map();
  for (const {element, value} of example.assignment) {
    const split = /^(.*)\[([^\]]*)\]$/.exec(element);
    const name = split ? split[1] : element;
    if (!byTensor.has(name)) byTensor.set(name, []);
    byTensor.get(name).push([split ? split[2] : '', value]);
  }
  const result = make('table', {class: 'matrix'}, make('caption', {}, 'differs at'),
    make('tr', {}, make('th', {}, 'element'), make('th', {}, 'model'), make('th', {}, 'plan')),
    make('tr', {}, make('td', {}, printable(example.element, 120)), make('td', {class: 'differs'}, numberText(example.logical)),
      make('td', {class: 'differs'}, numberText(example.parallel))));
  const inputs = [...byTensor].slice(0, 12).map(([name, cells]) => {
    const table = make('table', {class: 'matrix'}, make('caption', {}, 'when ' + printable(name, 60)));
    for (const [position, value] of cells.slice(0, 16))
      table.append(make('tr', {}, make('th', {scope: 'row'}, '[' + position + ']'), make('td', {title: String(value)}, numberText(value))));
    return table;
  });
  return make('div', {class: 'matrices'}, result, inputs);
}
