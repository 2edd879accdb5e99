// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <variant>

#include "ops/registry.h"
#include "stages/stage.h"

namespace shardproof {

namespace {

// Appends integers and texts so that no two different sequences give the same bytes: every list is
// preceded by its length.
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
    bytes.number(s.collapsed);
    bytes.number(s.coordinate);
    bytes.numbers(s.offset);
  });
}

void put(Bytes& bytes, const Attributes& attributes) {
  bytes.list(attributes, [&](const auto& a) {
    bytes.text(a.first);
    bytes.number(static_cast<std::int64_t>(a.second.index()));
    if (const auto* flag = std::get_if<bool>(&a.second)) bytes.number(*flag ? 1 : 0);
    if (const auto* number = std::get_if<Rational>(&a.second)) bytes.text(number->toString());
    if (const auto* text = std::get_if<std::string>(&a.second)) bytes.text(*text);
    if (const auto* list = std::get_if<std::vector<std::int64_t>>(&a.second)) bytes.numbers(*list);
  });
}

}  // namespace

// Ids of operators, attribute sets, names and constants mean nothing outside their problem and
// their build: forms of several problems, and of the runs before this one, are compared with each
// other, so all of these are written out. A pair of operator and attributes is written at its first
// use, and named by its number in the order of first uses from then on. canonical_reader.cpp reads
// this back.
std::string canonicalForm(const Stage& stage) {
  Bytes bytes;
  bytes.list(stage.collapsedAxes, [&](const CollapsedAxis& l) {
    // Which axis it is does not matter, only which coordinates stand for how many, and which are
    // classes by themselves.
    bytes.number(l.size);
    bytes.list(l.kept, [&](const auto& k) {
      bytes.number(k.first);
      bytes.number(k.second);
    });
    bytes.list(l.alone, [&](std::int32_t c) { bytes.number(c); });
  });
  bytes.list(stage.tensors, [&](const StageTensor& t) {
    bytes.number((((static_cast<std::int64_t>(t.origin) * 2 + t.info.absent) * 4 +
                   static_cast<std::int64_t>(t.info.element)) *
                      TensorFacts::kCodes +
                  t.facts.code()) *
                     2 +
                 t.logical);
    bytes.numbers(t.info.shape);
    if (t.origin == Origin::kConstant) {
      const ConstantValue& value = *t.constant;
      bytes.number(value.fill ? 1 : 0);
      bytes.list(value.elements, [&](const Rational& r) { bytes.text(r.toString()); });
    }
  });
  // Attribute sets are interned where a stage comes from, but for those of operators that stand for
  // communications: equal ones are found by what they say.
  std::map<std::pair<OperatorId, const Attributes*>, std::int64_t> operations;
  std::map<std::pair<OperatorId, std::string>, std::int64_t> contents;
  bytes.list(stage.nodes, [&](const StageNode& n) {
    bytes.number(static_cast<std::int64_t>(n.communication) * 2 + n.logical);
    if (n.communication == Communication::kNone) {
      const auto [it, unseen] = operations.emplace(std::pair(n.op, n.attributes.get()), -1);
      bool first = false;
      if (unseen) {
        Bytes text;
        put(text, *n.attributes);
        const auto found = contents.emplace(std::pair(n.op, text.take()),
                                            static_cast<std::int64_t>(contents.size()));
        it->second = found.first->second;
        first = found.second;
      }
      bytes.number(it->second);
      if (first) {
        bytes.text(ops::Registry::instance().at(n.op).name);
        put(bytes, *n.attributes);
      }
    }
    bytes.numbers(n.in);
    bytes.numbers(n.out);
    if (n.communication != Communication::kNone) {
      bytes.number(static_cast<std::int64_t>(n.reduction));
      bytes.number(n.dim);
      bytes.number(n.odim);
      bytes.number(n.member);
      bytes.numbers(n.weight);
    }
  });
  bytes.list(stage.claims, [&](const Equation& e) { put(bytes, e); });
  bytes.list(stage.assumptions, [&](const Equation& e) { put(bytes, e); });
  return bytes.take();
}

}  // namespace shardproof
