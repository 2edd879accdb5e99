// SPDX-License-Identifier: Apache-2.0
'use strict';
// The page: verdict and causes on top, the picture, the list of stages, and one of them.

const WORDS = {'equivalent': 'EQUIVALENT', 'not-equivalent': 'NOT EQUIVALENT', 'undecided': 'UNDECIDED', 'conditional': 'CONDITIONAL'};
// Text, and names in arrays. A recorded step has the name of its script or function: its files may be gone.
const planOf = r => r.source ? [[r.source]] : ['plan ', [r.plan]];
const modelOf = r => r.source ? ['its single device'] : ['model ', [r.model]];
const SAYS = {
  'equivalent': r => [...planOf(r), ' computes what ', ...modelOf(r), ' computes, for every input'],
  'not-equivalent': r => [...planOf(r), ' does not compute what ', ...modelOf(r), ' computes'],
  'undecided': r => ['whether ', ...planOf(r), ' computes what ', ...modelOf(r), ' computes could not be settled'],
  'conditional': r => [...planOf(r), ' computes what ', ...modelOf(r), ' computes, if'],
};
const ORDER = {'refuted': 0, 'wrong-lineage': 1, 'undecided': 2, 'proved': 3};
const CAUSES_AT_ONCE = 20;

function showVerdict(report) {
  const box = document.getElementById('verdict'), s = report.statistics, count = n => n.toLocaleString('en');
  box.className = report.verdict;
  box.replaceChildren(
    make('h1', {}, make('span', {class: 'verdict-word'}, WORDS[report.verdict])),
    make('p', {class: 'name'}, SAYS[report.verdict](report).map(t => Array.isArray(t) ? make('code', {}, printable(t[0])) : t), report.reason ? ': ' + printable(report.reason, 1000) : ''),
    make('p', {class: 'facts'}, `${count(report.outputs_proved)} of ${count(report.outputs)} outputs proved · ${count(s.stages)} stages, ${count(s.classes)} proofs · ${count(s.ranks)} ranks · ` +
      `${count(s.microbatches)} microbatches · ${count(s.operator_instances)} operator instances · ${s.seconds.toFixed(2)} s`),
    ...(report.confirmation ? [make('p', {class: 'facts'}, printable(report.confirmation.text, 1000))] : []),
    ...ledger(report), ...parameterTable(report));
  document.title = WORDS[report.verdict] + ' – ' + printable(report.source || report.plan, 80);
}

// What is compared and what was assumed. Harmless assumptions are one line for each name.
const NOT_COMPARED_AT_ONCE = 20;
function ledger(report) {
  const lines = report.approved_differences.map(d => `Approved difference: ${d.name}: ${d.claim} (taken as given)`);
  lines.push('Compared: ' + (Object.entries(report.compared).map(([kind, outputs]) => `${kind} (${outputs.length.toLocaleString('en')})`).join(', ') || 'nothing'));
  for (const item of report.not_compared.slice(0, NOT_COMPARED_AT_ONCE))
    lines.push(`Not compared${item.allowed ? ' (allowed)' : ''}: ${item.what}${item.because ? ' because ' + item.because : ''}`);
  if (report.not_compared.length > NOT_COMPARED_AT_ONCE) lines.push(`Not compared: ${(report.not_compared.length - NOT_COMPARED_AT_ONCE).toLocaleString('en')} more`);
  const folded = new Set();
  for (const kind of ['risk', 'checkable', 'harmless']) {
    for (const a of report.assumptions.filter(a => a.class === kind)) {
      if (kind === 'harmless' && folded.has(a.name)) continue;
      folded.add(a.name);
      const same = report.assumptions.filter(b => b.class === kind && b.name === a.name).length;
      lines.push(`Assumed (${kind}${kind === 'risk' ? a.accepted ? ', accepted' : ', not accepted' : ''}): ${a.name}${kind === 'harmless' && same > 1 ? ` (${same})` : ''}: ${a.text}`);
    }
  }
  return lines.map(line => make('p', {class: 'facts ledger'}, printable(line, 1000)));
}

// How backward makes the gradients of parameters, by axis (--explain-parameters).
function parameterTable(report) {
  const table = report.parameters;
  if (!table) return [];
  const title = make('p', {class: 'facts ledger'}, 'Gradients of parameters: ' + (table.rows.length === 0 ? printable(table.reason, 1000)
    : `as backward makes them, and what follows (from one execution of ${table.smaller_plan ? 'a smaller plan' : 'the plan'} at random inputs)`));
  if (table.rows.length === 0) return [title];
  return [title, make('table', {class: 'parameters'},
    make('tr', {}, make('th', {}, 'parameters'), table.rows[0].axes.map(a => make('th', {}, printable(a.axis)))),
    table.rows.map(row => make('tr', {}, make('td', {class: 'name'}, row.parameters.map(p => printable(p, 200)).join(', ')),
      row.axes.map(a => make('td', {}, printable(a.text, 1000))))))];
}

// `first`: the one that is looked at first has the picture.
function causeCard(data, cause, open, first) {
  const suspected = data.report.verdict !== 'not-equivalent';
  const nodes = cause.nodes.slice(0, 6).map(n => nodeLine(data, n));
  if (cause.nodes.length > 6) nodes.push('and ' + (cause.nodes.length - 6) + ' more');
  const shows = cause.tensors.slice(0, 6).map(t => printable(t, 80)).join(', ') + (cause.tensors.length > 6 ? ' and more' : '');
  const title = headline(cause);
  return make('article', {class: 'card' + (suspected ? ' suspected' : '') + (first ? ' first' : ''), id: 'cause-' + cause.id},
    make('p', {class: 'headline'}, make('strong', {}, (suspected ? 'Suspected cause ' : 'Cause ') + cause.id + ': '), sentence(title)),
    make('p', {class: 'facts'}, 'ranks ' + (ranksText(cause.ranks) || '–'), cause.microbatches.length ? ' · microbatches ' + ranksText(cause.microbatches) : null,
      shows ? [' · shows in ', make('span', {class: 'name'}, shows)] : null),
    first ? flowPicture(data, cause) : null,
    title.length < cause.sentence.length ? make('p', {}, sentence(withoutPointers(cause.sentence))) : null,
    cause.fix ? make('p', {class: 'fix'}, make('strong', {}, cause.fix.proved ? 'Proved fix: ' : 'Fix (not proved): '), sentence(withoutPointers(cause.fix.text))) : null,
    make('dl', {}, make('dt', {}, 'look at'), make('dd', {}, nodes)),
    comparedView(cause.compared), open ? make('button', {type: 'button', onclick: open}, 'Show the stage') : null);
}

function showCauses(data, open) {
  const box = document.getElementById('causes'), report = data.report;
  const stageOf = cause => {
    const all = report.defects.length ? report.defects : report.suspects;
    const entry = cause.defects.map(i => all[i]).filter(d => d && d.entry >= 0).map(d => d.entry)[0];
    return data.stages.findIndex(s => s[STAGE.entry] === entry);
  };
  const cards = report.causes.map((cause, i) => () => { const s = stageOf(cause); return causeCard(data, cause, s >= 0 ? () => open(s) : null, i === 0); });
  const explained = new Set(report.causes.flatMap(c => c.defects));
  const rest = (report.defects.length ? report.defects : report.suspects).filter((d, i) => !explained.has(i));
  rest.forEach(d => cards.push(() => make('article', {class: 'card' + (report.defects.length ? '' : ' suspected')},
    make('p', {}, make('strong', {}, 'Defect (' + d.kind + '): '), sentence(d.message)),
    make('dl', {}, make('dt', {}, 'ranks'), make('dd', {}, ranksText(d.ranks) || '–'), make('dt', {}, 'look at'),
      make('dd', {}, d.nodes.slice(0, 6).map(n => nodeLine(data, n)))),
    d.counterexample ? counterexampleView(d.counterexample) : null)));
  if (!cards.length) return;
  const list = make('div', {}), more = make('button', {type: 'button', id: 'more-causes'});
  let shown = 0;
  const show = count => {
    cards.slice(shown, shown + count).forEach(card => list.append(card()));
    shown = Math.min(cards.length, shown + count);
    more.hidden = shown === cards.length;
    more.textContent = 'Show ' + Math.min(100, cards.length - shown) + ' more of ' + cards.length.toLocaleString('en');
  };
  more.addEventListener('click', () => show(100));
  box.append(make('h2', {}, report.causes.length ? (report.causes.length === 1 ? 'The cause' : report.causes.length.toLocaleString('en') + ' causes') : 'Defects'), list, more);
  show(CAUSES_AT_ONCE);
}

function showPicture(data) {
  const report = data.report, affected = new Set(), named = new Set();
  for (const found of report.causes.concat(report.defects)) {
    found.ranks.forEach(r => affected.add(r));
    for (const node of found.nodes) {
      const program = /^\/programs\/(\d+)\//.exec(node.pointer);
      if (program && node.in === 'plan') named.add(Number(program[1]));
    }
  }
  document.getElementById('picture').append(make('h2', {}, 'Mesh and pipeline'),
    make('p', {class: 'hint'}, affected.size ? 'Marked: ranks ' + ranksText([...affected]) + '.' : 'No rank is affected.'),
    make('div', {class: 'row'}, meshPicture(data, affected), pipelinePicture(data, affected, named)));
}

function showList(data, open) {
  const table = $('#stages').DataTable({
    data: data.stages.map((s, i) => [i, ...s.slice(0, 7)]), deferRender: true, pageLength: 15, lengthMenu: [15, 50, 200], order: [[4, 'asc'], [0, 'asc']], autoWidth: false,
    columns: [
      {title: '#', width: '4rem'}, {title: 'tensor', render: (t, type) => type === 'display' ? $('<i>').text(printable(t, 160)).html() : t},
      {title: 'role', width: '7rem'}, {title: 'lineage', width: '6rem'},
      {title: 'verdict', width: '9rem', render: (v, type) => type === 'display' ? `<span class="badge ${v}">${v}</span>` : type === 'sort' ? ORDER[v] : v},
      {title: 'method', width: '9rem'}, {title: 'because', render: (r, type) => type === 'display' ? $('<i>').text(printable(data.reasons[r], 120)).html() : type === 'filter' ? '' : r},
      {title: 'proof', width: '5rem'}],
    createdRow: (row, values) => { row.tabIndex = -1; row.dataset.stage = values[0]; },
    drawCallback: () => { const first = document.querySelector('#stages tbody tr[data-stage]'); if (first) first.tabIndex = 0; },
    language: {search: 'Filter:', emptyTable: 'No stages: nothing is proved of a plan that cannot run.'},
  });
  // Buttons for roles and verdicts, with their numbers.
  const filters = document.getElementById('filters');
  const filter = (label, column, value) => {
    const count = value === null ? data.stages.length : data.stages.filter(s => s[column - 1] === value).length;
    if (!count) return;
    filters.append(make('button', {type: 'button', 'aria-pressed': value === null ? 'true' : 'false', onclick: event => {
      filters.querySelectorAll('button').forEach(b => b.setAttribute('aria-pressed', String(b === event.currentTarget)));
      table.columns([2, 4]).search('');
      if (value !== null) table.column(column).search('^' + value + '$', true, false);
      table.draw();
    }}, label + ' ' + count.toLocaleString('en')));
  };
  filter('All', 2, null);
  filter('Outputs', 2, 'output');
  filter('Cut points', 2, 'cut_point');
  for (const verdict of Object.keys(ORDER)) filter(verdict[0].toUpperCase() + verdict.slice(1), 4, verdict);
  const body = document.querySelector('#stages tbody');
  body.addEventListener('click', event => { const row = event.target.closest('tr[data-stage]'); if (row) open(Number(row.dataset.stage)); });
  body.addEventListener('keydown', event => {
    const row = event.target.closest('tr[data-stage]');
    if (!row) return;
    const page = {PageDown: 'next', PageUp: 'previous'}[event.key];
    const to = {ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling}[event.key];
    if (event.key === 'Enter') open(Number(row.dataset.stage));
    else if (page) { table.page(page).draw('page'); document.querySelector('#stages tbody tr[data-stage]').focus(); }
    else if (to) to.focus();
    else return;
    event.preventDefault();
  });
  document.addEventListener('keydown', event => {
    if (event.key === '/' && !/INPUT|TEXTAREA|SELECT/.test(event.target.tagName)) { document.querySelector('#stages_filter input').focus(); event.preventDefault(); }
  });
  // From the filter straight into the list.
  document.querySelector('#stages_filter input').addEventListener('keydown', event => {
    if (event.key !== 'ArrowDown' && event.key !== 'Enter') return;
    const first = document.querySelector('#stages tbody tr[data-stage]');
    if (first) first.focus();
    event.preventDefault();
  });
}

function themeButton() {
  const button = document.getElementById('theme'), dark = matchMedia('(prefers-color-scheme: dark)'), names = ['auto', 'light', 'dark'];
  let chosen = 0;
  const apply = () => {
    const name = names[chosen] === 'auto' ? (dark.matches ? 'dark' : 'light') : names[chosen];
    document.documentElement.dataset.theme = name;
    button.textContent = 'Theme: ' + names[chosen];
  };
  button.addEventListener('click', () => { chosen = (chosen + 1) % names.length; apply(); });
  dark.addEventListener('change', apply);
  apply();
}

async function main() {
  themeButton();
  const data = await loadData();
  let from = null;
  const back = () => {
    document.getElementById('stage').hidden = true;
    const row = from !== null && document.querySelector(`#stages tbody tr[data-stage="${from}"]`);
    (row || document.querySelector('#stages_filter input')).focus();
  };
  const open = s => { from = s; showStage(data, data.stages[s], back); };
  showVerdict(data.report);
  showCauses(data, open);
  showPicture(data);
  showList(data, open);
  document.addEventListener('keydown', event => { if (event.key === 'Escape' && !document.getElementById('stage').hidden) back(); });
  const report = data.report;
  document.getElementById('footer').append(make('p', {class: 'facts'}, report.tool.name + ' ' + report.tool.version + ' · exit code ' + report.exit_code +
    ' · jQuery, DataTables and D3 are in this file with their licences'));
  document.body.dataset.ready = 'true';
}

main().catch(error => {
  document.getElementById('verdict').textContent = 'This report cannot be shown: ' + error.message;
  document.body.dataset.ready = 'failed';
  throw error;
});
