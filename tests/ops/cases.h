// SPDX-License-Identifier: Apache-2.0
// One list of operator calls, small and of random shapes, for the tests that hold for every
// operator: gradients against finite differences, reduced against full execution. A new operator is
// covered by adding its calls here.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "numbers/double_algebra.h"
#include "numbers/modular_algebra.h"
#include "ops/attributes.h"
#include "ops/operator.h"
#include "ops/registry.h"
#include "terms/term_algebra.h"

namespace shardproof::ops::testing {

struct OperandSpec {
  Shape shape;
  ElementKind element = ElementKind::kReal;
  bool positive = false;    // values in [0.5, 2]: denominators, roots, logarithms
  std::int64_t values = 0;  // integers: 0 .. values - 1
  bool present = true;
};

struct Call {
  std::string op;
  Attributes attributes;
  std::vector<OperandSpec> in;
  std::size_t results = 1;
};

using Random = std::mt19937_64;

inline Attributes numbers(std::initializer_list<std::pair<const char*, std::int64_t>> list) {
  Attributes a;
  for (const auto& [k, v] : list) a[k] = Rational(v);
  return a;
}

inline std::string describe(const Call& c) {
  std::string s = c.op + "(";
  for (const OperandSpec& o : c.in)
    s += (s.back() == '(' ? "" : ", ") + (o.present ? toText(o.shape) : std::string("null"));
  for (const auto& [k, v] : c.attributes) {
    s += ", " + k;
    if (const auto* r = std::get_if<Rational>(&v)) s += "=" + r->toString();
    if (const auto* l = std::get_if<std::vector<std::int64_t>>(&v)) s += "=" + toText(*l);
    if (const auto* t = std::get_if<std::string>(&v)) s += "=" + *t;
  }
  return s + ")";
}

// Forward calls of every operator (communication has none). `scale`: how many times larger than
// small the sizes are.
std::vector<Call> forwardCalls(Random& random, std::int64_t scale = 1);
// The backward call of a forward call: gradients for all results that have one; `results` lines up
// with the operands.
Call backwardCall(const Call& forward);
bool hasBackward(const Call& forward);

std::vector<TensorInfo> infosOf(const Call& call);
std::vector<const TensorInfo*> pointers(const Call& call, const std::vector<TensorInfo>& infos);
std::vector<TensorInfo> inferResults(const Call& call);

inline void evaluate(const OperatorInfo& op, Evaluation<RealNumbers>& e) { op.doubles(e); }
inline void evaluate(const OperatorInfo& op, Evaluation<TermAlgebra>& e) { op.terms(e); }
inline void evaluate(const OperatorInfo& op, Evaluation<Residues>& e) { op.modular(e); }

// Runs a call on given operands; results that infer() calls absent are not asked for. `dims`: of
// the results (empty: full).
template <class Numbers, class A = OperatorAlgebra<Numbers>>
std::vector<TensorValue<A>> run(Numbers& algebra, const Call& call,
                                const std::vector<TensorValue<A>>& operands,
                                const std::vector<std::vector<ReducedDim>>& dims = {}) {
  const OperatorInfo& op = Registry::instance().at(Registry::instance().find(call.op));
  const std::vector<TensorInfo> infos = inferResults(call);
  std::vector<const TensorValue<A>*> in;
  for (std::size_t i = 0; i < call.in.size(); ++i)
    in.push_back(call.in[i].present ? &operands[i] : nullptr);
  std::vector<TensorValue<A>> results(infos.size());
  std::vector<TensorValue<A>*> out;
  for (std::size_t r = 0; r < infos.size(); ++r) {
    results[r].element = infos[r].element;
    if (dims.empty())
      for (const std::int64_t n : infos[r].shape) results[r].dims.push_back(ReducedDim::whole(n));
    else results[r].dims = dims[r];
    out.push_back(infos[r].absent ? nullptr : &results[r]);
  }
  Evaluation<A> e{algebra, call.attributes, in, out};
  evaluate(op, e);
  for (std::size_t r = 0; r < infos.size(); ++r)
    if (out[r] != nullptr && static_cast<std::int64_t>(results[r].data.size()) !=
                                 results[r].positions() * results[r].planes())
      throw std::logic_error("a result has the wrong number of elements");
  return results;
}

TensorValue<RealNumbers> randomTensor(const OperandSpec& spec, Random& random);
std::vector<TensorValue<RealNumbers>> randomOperands(const Call& call, Random& random);

}  // namespace shardproof::ops::testing
