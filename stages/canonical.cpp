#include <algorithm>
#include <string>

#include "stages/stage.h"

namespace shardproof {

std::size_t Stage::logicalNodes() const {
  return static_cast<std::size_t>(std::count_if(nodes.begin(), nodes.end(), [](const StageNode& n) { return n.logical; }));
}

namespace {

// Appends integers and texts so that no two different sequences give the same bytes: every list is preceded by its length.
class Bytes {
 public:
  void number(std::int64_t n) {
    // Zigzag varint: stages are many and most numbers are small.
    auto u = (static_cast<std::uint64_t>(n) << 1) ^ static_cast<std::uint64_t>(n >> 63);
    do {
      out_.push_back(static_cast<char>((u & 0x7F) | (u > 0x7F ? 0x80 : 0)));
      u >>= 7;
    } while (u != 0);
  }
  void text(const std::string& s) {
    number(static_cast<std::int64_t>(s.size()));
    out_ += s;
  }
  template <class List, class F>
  void list(const List& values, F&& f) {
    number(static_cast<std::int64_t>(values.size()));
    for (const auto& v : values) f(v);
  }
  void numbers(const auto& values) {
    list(values, [&](const auto& v) { number(static_cast<std::int64_t>(v)); });
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

void put(Bytes& bytes, const Equation& e) {
  bytes.number(e.logical);
  bytes.list(e.box, [&](const auto& b) {
    bytes.number(b.first);
    bytes.number(b.second);
  });
  bytes.list(e.parts, [&](const auto& p) {
    bytes.number(p.first);
    bytes.number(p.second);
  });
  bytes.list(e.step, [&](const auto& s) {
    bytes.number(s.lump);
    bytes.number(s.coordinate);
    bytes.numbers(s.offset);
  });
}

}  // namespace

std::string canonicalForm(const Stage& stage, const Problem& problem) {
  Bytes bytes;
  bytes.list(stage.lumps, [&](const AxisLump& l) {
    // Which axis it is does not matter, only how many coordinates it lumps.
    bytes.number(l.size);
  });
  bytes.list(stage.tensors, [&](const StageTensor& t) {
    bytes.number(static_cast<std::int64_t>(t.origin) * 8 + static_cast<std::int64_t>(t.info.element) * 2 + t.logical);
    bytes.numbers(t.info.shape);
    if (t.origin == Origin::kConstant) {
      const Graph& graph = t.logical ? problem.model.graph : problem.plan.programs[static_cast<std::size_t>(t.program)].graph;
      const Tensor& tensor = graph.tensors[static_cast<std::size_t>(t.tensor)];
      bytes.list(graph.constants[static_cast<std::size_t>(tensor.constant)].elements, [&](const Rational& r) { bytes.text(r.toString()); });
    }
  });
  bytes.list(stage.nodes, [&](const StageNode& n) {
    bytes.number(n.op.value);
    bytes.number(n.attributes.value);   // interned: equal sets have equal ids
    bytes.number(static_cast<std::int64_t>(n.communication) * 2 + n.logical);
    bytes.numbers(n.in);
    bytes.numbers(n.out);
    if (n.communication != Communication::kNone) {
      bytes.number(static_cast<std::int64_t>(n.reduction));
      bytes.number(n.dim);
      bytes.number(n.odim);
      bytes.number(n.member);
      bytes.numbers(n.multiplicity);
    }
  });
  bytes.list(stage.claims, [&](const Equation& e) { put(bytes, e); });
  bytes.list(stage.assumptions, [&](const Equation& e) {
    put(bytes, e);
  });
  return bytes.take();
}

}  // namespace shardproof
