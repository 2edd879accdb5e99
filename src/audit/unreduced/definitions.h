// SPDX-License-Identifier: Apache-2.0
// The families of operators, each element by element, written from docs/operators.md and from
// nothing else of the program. A gradient is written out, not derived: it is the formula of the
// textbook, summed over the results that the operand's element has a part in.
#pragma once

#include <map>
#include <string>

#include "unreduced/evaluator.h"

namespace shardproof::unreduced {

class DefinitionTable {
 public:
  // `definition`: callable for either algebra, (view, result, flat) -> Number.
  template <class F>
  void add(const std::string& name, F definition) {
    definitions_.insert_or_assign(name, Definitions{definition, definition});
  }
  const Definitions* find(const std::string& name) const {
    const auto it = definitions_.find(name);
    return it == definitions_.end() ? nullptr : &it->second;
  }

 private:
  std::map<std::string, Definitions> definitions_;
};

void defineElementwise(DefinitionTable& table);
void defineLayout(DefinitionTable& table);
void defineContractions(DefinitionTable& table);
void defineRows(DefinitionTable& table);
void defineLookups(DefinitionTable& table);
void defineAttention(DefinitionTable& table);
void defineExperts(DefinitionTable& table);
void defineTraining(DefinitionTable& table);

// The element of an operand of `operand`'s shape that stands at `p` of the broadcast shape.
inline Index broadcastFrom(const Shape& operand, const Position& p) {
  const std::size_t front = p.rank() - operand.size();
  Index flat = 0;
  for (std::size_t d = 0; d < operand.size(); ++d)
    flat = flat * operand[d] + (operand[d] == 1 ? 0 : p[front + d]);
  return flat;
}

// The sum of f(flat) over the elements of `result` that the operand's element `flat` was broadcast
// to.
template <class A, class F>
Number<A> overBroadcast(const NodeView<A>& n, const Shape& operand, const Shape& result, Index flat,
                        F&& f) {
  if (operand == result) return f(flat);
  const Position own = unravel(operand, flat);
  const std::size_t front = result.size() - operand.size();
  Position p(result.size());
  std::vector<std::size_t> free;
  for (std::size_t d = 0; d < result.size(); ++d) {
    if (d < front || (operand[d - front] == 1 && result[d] != 1)) free.push_back(d);
    else p[d] = own[d - front];
  }
  Sum<A> sum = n.sum();
  forEach(result, free, p, [&] { sum.add(f(ravel(result, p))); });
  return sum.value();
}

}  // namespace shardproof::unreduced
