// SPDX-License-Identifier: Apache-2.0
// What an HLO instruction's result is while a program is read: what is known of it, or the tensor
// of the graph that holds it.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "reader/hlo/graph.h"
#include "reader/hlo/index.h"
#include "reader/hlo/syntax.h"
#include "reader/hlo/table.h"

namespace shardproof::hlo {

// A function of an integer tensor of the graph, at each place. `labels` says for each dimension of
// the value which dimension of `base` it is; -1: none, all is alike along it. Dimensions of `base`
// that no label names have size 1.
struct IndexFunction {
  std::string base;
  std::vector<int> labels;
  Pieces pieces;
};

// Whether its dimensions are those of `base` in the same order, but for some of size 1.
inline bool keepsOrder(const IndexFunction& f, const Sizes& sizes) {
  int last = -1;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 1) continue;
    if (f.labels[d] <= last) return false;
    last = f.labels[d];
  }
  return true;
}

// Rows of a tensor chosen by an integer tensor: at each i in [low, high) of `base`, row i + offset
// (or row `offset` whatever i is, or a number) along dimension `axis` of `table`.
struct LookupPiece {
  enum class Kind : std::uint8_t { kMoving, kFixed, kNumber };
  std::int64_t low = 0, high = 0;
  Kind kind = Kind::kMoving;
  std::int64_t offset = 0;
  ScalarId number = 0;
  bool outside = false;  // the row is where an index that was out of bounds has been moved to
};
// Pieces side by side that say the same become one; of one index alone, any row of its own is as
// well that of the piece beside it.
void mergePieces(std::vector<LookupPiece>& pieces);

struct Lookup {
  std::string base, table;
  std::size_t axis = 0;
  // For each dimension of `table` the dimension of `base` with which it goes along, or -1.
  std::vector<int> tied;
  // For each dimension of the value: a dimension of `base`, or the number of dimensions of `base`
  // plus a dimension of `table`, or -1.
  std::vector<int> labels;
  std::vector<LookupPiece> pieces;
};

struct Value;

// A tensor that is zero where `condition` is, and `value` elsewhere.
struct Guard {
  IndexFunction condition;
  std::string value;
};

// A tensor in pieces along one dimension.
struct Parts {
  std::size_t dim = 0;
  std::vector<std::pair<std::int64_t, Value>> parts;  // size along dim, value
};

// What is known, but is too much to be listed: an elementwise opcode of tables that differ along
// fewer dimensions (formula.h).
struct Formula {
  std::string opcode, direction, type;  // as Scalars::apply() takes them; of convert: to, from
  std::vector<Value> operands;          // tables and formulas of the value's sizes
  std::size_t nodes = 1;                // of the expression written as a tree
};

// What devices know that run one program, where it is not the same: for each of them one of the
// values, which are tables and formulas (lowering_devices.cpp).
struct Varying {
  std::vector<Value> values;
  std::vector<std::uint32_t> valueOf;  // by device; of those that do not run the program anything
};

struct Value {
  enum class Kind : std::uint8_t {
    kTable,
    kFormula,
    kVarying,
    kNode,
    kIndex,
    kLookup,
    kParts,
    kTuple
  };
  Kind kind = Kind::kTuple;
  Shape shape;
  std::shared_ptr<const Table> table;
  std::shared_ptr<const Formula> formula;
  std::shared_ptr<const Varying> varying;
  std::string name;                    // kNode: a tensor of reals, of the shape's sizes
  std::shared_ptr<const Guard> guard;  // kNode, or null
  std::shared_ptr<const IndexFunction> index;
  std::shared_ptr<const Lookup> lookup;
  std::shared_ptr<const Parts> parts;
  std::vector<Value> elements;

  bool isTable() const { return kind == Kind::kTable; }
  bool isKnown() const { return kind == Kind::kTable || kind == Kind::kFormula; }
  bool isUniform() const { return isTable() && table->uniform(); }
  bool isIndex() const { return kind == Kind::kIndex; }
};

inline bool isPredicate(const Value& v) { return v.shape.type == "pred"; }

// A value of one kind, whose content is in `member`.
template <class T>
Value valueWith(Value::Kind kind, Shape shape, std::shared_ptr<const T> Value::*member, T content) {
  Value v;
  v.kind = kind;
  v.shape = std::move(shape);
  v.*member = std::make_shared<const T>(std::move(content));
  return v;
}
inline Value tableValue(Shape shape, Table table) {
  return valueWith(Value::Kind::kTable, std::move(shape), &Value::table, std::move(table));
}
inline Value indexValue(Shape shape, IndexFunction index) {
  return valueWith(Value::Kind::kIndex, std::move(shape), &Value::index, std::move(index));
}
inline Value lookupValue(Shape shape, Lookup lookup) {
  return valueWith(Value::Kind::kLookup, std::move(shape), &Value::lookup, std::move(lookup));
}
inline Value partsValue(Shape shape, Parts parts) {
  return valueWith(Value::Kind::kParts, std::move(shape), &Value::parts, std::move(parts));
}
inline Value formulaValue(Shape shape, Formula formula) {
  return valueWith(Value::Kind::kFormula, std::move(shape), &Value::formula, std::move(formula));
}
inline Value nodeValue(Shape shape, std::string name) {
  Value v;
  v.kind = Value::Kind::kNode;
  v.shape = std::move(shape);
  v.name = std::move(name);
  return v;
}
inline Value tupleValue(Shape shape, std::vector<Value> elements) {
  Value v;
  v.shape = std::move(shape);
  v.elements = std::move(elements);
  return v;
}

// Of a table: start, start + 1, ... along a dimension, alike along the others.
std::optional<std::int64_t> countsAlong(const Value& v, std::size_t dim, const Scalars& s);

}  // namespace shardproof::hlo
