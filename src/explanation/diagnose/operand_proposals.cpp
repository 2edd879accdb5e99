// SPDX-License-Identifier: Apache-2.0
// Which operands and results may have been taken for one another: of other microbatches, exchanged,
// or any of the same shape.
#include <algorithm>
#include <set>

#include "diagnose/search.h"

namespace shardproof::diagnose {

namespace {

constexpr std::size_t kMostOperands = 40;

bool alike(const Tensor& a, const Tensor& b) {
  return a.shape == b.shape && a.element == b.element && a.perMicrobatch == b.perMicrobatch;
}

}  // namespace

// Another microbatch of an operand: its own, or one number.
void Search::microbatches(const Site& site, std::vector<Edit>& edits) const {
  std::set<std::size_t> own;
  for (const NodeRef ref : site.nodes) {
    const Node& n = node(ref);
    const Graph& g = program(ref).graph;
    for (std::size_t i = 0; i < n.inCount; ++i) {
      const Operand& o = g.in(n)[i];
      if (!o.present() || !o.microbatch.isOne() || !g.tensors[o.tensor].perMicrobatch) continue;
      Edit edit = on(site, Edit::Kind::kOperand);
      edit.index = i;
      if (!n.microbatch.isNone()) {
        if (n.microbatch == o.microbatch || !own.insert(i).second) continue;
        edit.ownMicrobatch = true;
        edits.push_back(edit);
        continue;
      }
      if (ref != site.nodes.front()) continue;
      for (std::int32_t m = 0; m < std::min(plan().plan.microbatches, 32); ++m) {
        if (o.microbatch == Microbatch::of(m)) continue;
        edit.microbatch = m;
        edits.push_back(edit);
      }
    }
  }
}

// Two results, or two operands, of one operator.
void Search::exchanges(const Site& site, std::vector<Edit>& edits) const {
  const NodeRef ref = site.nodes.front();
  const Node& n = node(ref);
  if (n.communication >= 0) return;
  const Graph& g = program(ref).graph;
  // On the whole line, or where it goes wrong only.
  const auto exchange = [&](Edit::Kind kind, std::size_t a, std::size_t b) {
    Edit edit = on(site, kind);
    edit.index = a;
    edit.other = b;
    if (!site.failing.empty() && site.failing.size() < site.nodes.size()) {
      Edit here = edit;
      here.nodes = site.failing;
      here.wholeSite = false;
      edits.push_back(std::move(here));
    }
    edits.push_back(std::move(edit));
  };
  for (std::size_t a = 0; a < n.outCount; ++a)
    for (std::size_t b = a + 1; b < n.outCount; ++b) {
      const std::int32_t x = g.out(n)[a], y = g.out(n)[b];
      if (x < 0 || y < 0 || !alike(g.tensors[x], g.tensors[y])) continue;
      exchange(Edit::Kind::kExchangeResults, a, b);
    }
  for (std::size_t a = 0; a < n.inCount; ++a)
    for (std::size_t b = a + 1; b < n.inCount; ++b) {
      const Operand &x = g.in(n)[a], &y = g.in(n)[b];
      if (!x.present() || !y.present() || x.tensor == y.tensor ||
          !alike(g.tensors[x.tensor], g.tensors[y.tensor]))
        continue;
      exchange(Edit::Kind::kExchangeOperands, a, b);
    }
}

// Another tensor of the same shape: `kUnread` results that nobody reads, which were made for some
// reader; `kNear` what is made of the operand or next to it as well; `kAll` any.
void Search::operands(const Site& site, Operands which, std::vector<Edit>& edits) const {
  const NodeRef ref = site.nodes.front();
  const Node& n = node(ref);
  const Graph& g = program(ref).graph;
  for (std::size_t i = 0; i < n.inCount; ++i) {
    const Operand& o = g.in(n)[i];
    if (!o.present()) continue;
    const std::size_t before = edits.size();
    std::set<TensorId> own(g.out(n).begin(), g.out(n).end());
    own.insert(o.tensor);
    const auto propose = [&](TensorId t) {
      if (t < 0 || !own.insert(t).second || edits.size() - before >= kMostOperands) return;
      const Tensor& tensor = g.tensors[t];
      if (tensor.added && !tensor.standsFor.valid()) return;  // a part that lineage speaks of
      if (tensor.shape != g.tensors[o.tensor].shape ||
          tensor.element != g.tensors[o.tensor].element)
        return;
      const bool each = tensor.perMicrobatch;
      if (each && n.microbatch.isNone() && !o.microbatch.isOne()) return;
      Edit edit = on(site, Edit::Kind::kOperand);
      edit.index = i;
      edit.tensor = t;
      edits.push_back(edit);
    };
    if (which == Operands::kAll) {
      // The nearest in the program's order.
      for (std::size_t away = 1; away < g.nodes.size(); ++away)
        for (const std::int64_t place : {ref.node - static_cast<std::int64_t>(away),
                                         ref.node + static_cast<std::int64_t>(away)})
          if (place >= 0 && place < static_cast<std::int64_t>(g.nodes.size())) {
            for (const TensorId t : g.out(g.nodes[place])) propose(t);
            for (const Operand& other : g.in(g.nodes[place])) propose(other.tensor);
          }
      continue;
    }
    for (const TensorId t : unread(ref.program)) propose(t);
    if (which == Operands::kUnread) continue;
    for (const Node& m : g.nodes) {
      const auto in = g.in(m);
      const auto out = g.out(m);
      const bool reads =
          std::any_of(in.begin(), in.end(), [&](const Operand& x) { return x.tensor == o.tensor; });
      if (reads || std::find(out.begin(), out.end(), o.tensor) != out.end()) {
        for (const TensorId t : out) propose(t);
        for (const Operand& x : in) propose(x.tensor);
      }
    }
  }
  // One node of the line may be unlike the others: it alone leaves a result unread.
  if (which == Operands::kUnread && site.nodes.size() > 1)
    for (const NodeRef other : site.nodes) {
      const std::size_t before = edits.size();
      operands({{other}, site.distance, {}}, which, edits);
      for (std::size_t i = before; i < edits.size(); ++i) edits[i].wholeSite = false;
    }
}

}  // namespace shardproof::diagnose
