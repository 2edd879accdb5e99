// SPDX-License-Identifier: Apache-2.0
#include "ops/differentiate.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "ops/number_algebra.h"
#include "shardproof/error.h"
#include "terms/term_algebra.h"

namespace shardproof::ops {
namespace {

// The gradients of a sum of products without a tape. False when some operand's needs one.
template <class A>
bool contractGradients(const ForwardMeaning<A>& forward, Evaluation<A>& e, std::size_t results,
                       std::size_t operands) {
  const std::span<const TensorValue<A>* const> given(e.in.data() + results, operands);
  if (e.in[0] == nullptr ||
      std::any_of(given.begin(), given.end(), [](const auto* x) { return x == nullptr; }))
    return false;
  std::vector<TensorValue<A>*> none(1, nullptr);
  const std::vector<const TensorValue<A>*> in(given.begin(), given.end());
  const SumOfProducts products = forward.products({e.algebra, e.attributes, in, none});
  for (std::size_t i = 0; i < operands; ++i) {
    if (e.out[i] == nullptr) continue;
    expectDims(e.out[i]->dims, given[i]->dims);
    if (given[i]->element != ElementKind::kReal ||
        !contractGradient(e.algebra, products, *e.in[0], given, i, *e.out[i]))
      return false;
  }
  return true;
}

template <class A>
std::size_t independentDims(const ForwardMeaning<A>& forward, const Interface& interface,
                            const Attributes& attributes, std::size_t rank) {
  if (forward.independentDims != nullptr) return forward.independentDims(attributes, rank);
  return interface.traits.elementwise && !interface.followsLogicalPosition ? rank : 0;
}

template <class A>
void evaluateBackwardWhole(const ForwardMeaning<A>& forward, Evaluation<A>& e,
                           const Interface& interface);

// The gradients of an operator that is independent along its first dimensions, place by place of
// these: the Jacobian consists of blocks, one a place, and the weight of a place is that of its
// gradients, of its results and of its operands, so that it cancels. A tape of a block stays in a
// processor's cache where one of a whole tensor is many times as large as the tensor. False, and
// nothing done: it is not such an operator, or too small to gain by it.
template <class A>
bool backwardInBlocks(const ForwardMeaning<A>& forward, Evaluation<A>& e,
                      const Interface& interface) {
  constexpr Index kFrom = 50'000, kLeast = 64;  // elements: in all, and in a block
  const std::size_t results = interface.minResults;
  if (results != 1 || e.in.size() < 2 || e.in[0] == nullptr || e.in[1] == nullptr) return false;
  const std::vector<ReducedDim>& dims = e.in[0]->dims;
  if (countOf(dims) < kFrom) return false;
  std::size_t leading = independentDims(forward, interface, e.attributes, dims.size());
  while (leading > 0 && countOf(std::span(dims).subspan(leading)) < kLeast) --leading;
  if (leading == 0) return false;
  const auto first = std::span(dims).first(leading);
  enum class Share { kAbsent, kCut, kWhole };
  const auto shareOf = [&](const TensorValue<A>* x) -> std::optional<Share> {
    if (x == nullptr) return Share::kAbsent;
    if (x->element == ElementKind::kComplex) return std::nullopt;
    if (x->dims.size() == dims.size()) {
      if (std::ranges::equal(std::span(x->dims).first(leading), first)) return Share::kCut;
      if (std::ranges::any_of(std::span(x->dims).first(leading),
                              [](const ReducedDim& d) { return d.full != 1; }))
        return std::nullopt;
      return Share::kWhole;
    }
    return x->dims.size() + leading <= dims.size() ? std::optional(Share::kWhole) : std::nullopt;
  };
  std::vector<Share> shares;
  for (const TensorValue<A>* x : e.in) {
    const auto share = shareOf(x);
    if (!share) return false;
    shares.push_back(*share);
  }
  for (std::size_t i = 0; i < e.out.size(); ++i)
    if (e.out[i] != nullptr && shares[results + i] != Share::kCut) return false;

  std::vector<TensorValue<A>> in(e.in.size()), out(e.out.size());
  std::vector<const TensorValue<A>*> operands(e.in.begin(), e.in.end());
  std::vector<TensorValue<A>*> gradients(e.out.size(), nullptr);
  std::vector<Index> length(e.in.size(), 0);
  const auto cutDims = [&](const TensorValue<A>& x) {
    std::vector<ReducedDim> block(leading);
    block.insert(block.end(), x.dims.begin() + static_cast<std::ptrdiff_t>(leading), x.dims.end());
    return block;
  };
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (shares[i] != Share::kCut) continue;
    in[i].dims = cutDims(*e.in[i]);
    in[i].element = e.in[i]->element;
    length[i] = countOf(in[i].dims);
    operands[i] = &in[i];
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (e.out[i] == nullptr) continue;
    expectDims(e.out[i]->dims, e.in[results + i]->dims);
    out[i].dims = in[results + i].dims;
    out[i].element = e.out[i]->element;
    gradients[i] = &out[i];
    e.out[i]->data.clear();
    e.out[i]->data.reserve(e.in[results + i]->data.size());
  }
  for (Index block = 0; block < countOf(first); ++block) {
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (shares[i] != Share::kCut) continue;
      const auto from = e.in[i]->data.begin() + block * length[i];
      in[i].data.assign(from, from + length[i]);
    }
    Evaluation<A> one{e.algebra, e.attributes, operands, gradients};
    evaluateBackwardWhole(forward, one, interface);
    for (std::size_t i = 0; i < out.size(); ++i)
      if (e.out[i] != nullptr)
        e.out[i]->data.insert(e.out[i]->data.end(), out[i].data.begin(), out[i].data.end());
  }
  return true;
}

template <class A>
void evaluateBackwardWhole(const ForwardMeaning<A>& forward, Evaluation<A>& e,
                           const Interface& interface) {
  using D = Differentiable<A>;
  const std::size_t results = interface.minResults, operands = e.in.size() - results;
  D tape(e.algebra);

  std::vector<TensorValue<D>> operandValues(operands);
  std::vector<const TensorValue<D>*> in(operands, nullptr);
  std::vector<std::int32_t> firstVariable(operands, -1);
  std::size_t variables = 0;
  for (std::size_t i = 0; i < operands; ++i) {
    const TensorValue<A>* x = e.in[results + i];
    if (x == nullptr) {
      if (e.out[i] != nullptr)
        throw Unsupported(interface.name + "_backward: a gradient of an absent operand");
      continue;
    }
    const bool wanted = e.out[i] != nullptr;
    if (wanted) {
      if (x->element != ElementKind::kReal ||
          std::find(interface.withoutGradient.begin(), interface.withoutGradient.end(), i) !=
              interface.withoutGradient.end())
        throw Unsupported(interface.name + "_backward: operand " + std::to_string(i) +
                          " has no gradient");
      expectDims(e.out[i]->dims, x->dims);
      firstVariable[i] = static_cast<std::int32_t>(variables);
      variables += x->data.size();
    }
    operandValues[i].dims = x->dims;
    operandValues[i].element = x->element;
    operandValues[i].data.reserve(x->data.size());
    for (const auto& value : x->data)
      operandValues[i].data.push_back(wanted ? tape.variable(value) : D::passive(value));
    in[i] = &operandValues[i];
  }

  std::vector<TensorValue<D>> resultValues(results);
  std::vector<TensorValue<D>*> out(results, nullptr);
  for (std::size_t r = 0; r < results; ++r) {
    if (e.in[r] == nullptr) continue;
    resultValues[r].dims = e.in[r]->dims;
    resultValues[r].element = e.in[r]->element;
    out[r] = &resultValues[r];
  }
  Evaluation<D> onTape{tape, e.attributes, in, out};
  forward.onTape(onTape);

  // Factors that all weights share are cancelled before they are multiplied in. Where the Jacobian
  // is diagonal they cancel entirely.
  bool diagonal = interface.traits.elementwise && out[0] != nullptr;
  for (std::size_t i = 0; i < operands; ++i)
    if (e.out[i] != nullptr && out[0] != nullptr && e.in[results + i]->dims != out[0]->dims)
      diagonal = false;
  std::vector<std::vector<std::int64_t>> seedWeights(results);
  std::int64_t common = 0;  // 0: not all equal (or not yet known)
  if (!diagonal) {
    bool uniform = true;
    for (std::size_t r = 0; r < results; ++r) {
      if (out[r] == nullptr) continue;
      seedWeights[r] = weightsOf(out[r]->dims);
      const std::int64_t w = seedWeights[r].empty() ? 1 : seedWeights[r][0];
      if (common == 0) common = w;
      uniform = uniform && w == common &&
                std::all_of(seedWeights[r].begin(), seedWeights[r].end(),
                            [&](std::int64_t v) { return v == w; });
    }
    if (!uniform) common = 1;
    else
      for (auto& w : seedWeights) w.clear();
  }
  std::vector<std::pair<std::int32_t, typename A::Element>> seeds;
  for (std::size_t r = 0; r < results; ++r) {
    if (out[r] == nullptr) continue;
    if (out[r]->data.size() != e.in[r]->data.size())
      throw std::logic_error("backward: a gradient does not have its result's size");
    for (std::size_t i = 0; i < e.in[r]->data.size(); ++i) {
      const auto& g = e.in[r]->data[i];
      const std::int64_t w = seedWeights[r].empty() ? 1 : seedWeights[r][i];
      seeds.emplace_back(out[r]->data[i].node, w == 1 ? g : e.algebra.scale(Rational(w), g));
    }
  }
  const std::vector<typename A::Element> adjoints = tape.adjoints(seeds, variables);
  for (std::size_t i = 0; i < operands; ++i) {
    if (e.out[i] == nullptr) continue;
    const TensorValue<A>& x = *e.in[results + i];
    const std::vector<std::int64_t> own =
        diagonal ? std::vector<std::int64_t>{} : weightsOf(x.dims);
    const std::int64_t numerator = diagonal ? 1 : std::max<std::int64_t>(common, 1);
    e.out[i]->data.clear();
    e.out[i]->data.reserve(x.data.size());
    for (std::size_t k = 0; k < x.data.size(); ++k) {
      const Rational factor(numerator, own.empty() ? 1 : own[k]);
      const auto& a = adjoints[at(firstVariable[i]) + k];
      e.out[i]->data.push_back(factor.isOne() ? a : e.algebra.scale(factor, a));
    }
  }
}

}  // namespace

template <class A>
void evaluateBackward(const ForwardMeaning<A>& forward, Evaluation<A>& e,
                      const Interface& interface) {
  const std::size_t results = interface.minResults;
  if (e.in.size() < results || e.out.size() != e.in.size() - results)
    throw std::logic_error("backward: results do not line up with operands");
  if (forward.products != nullptr && contractGradients(forward, e, results, e.in.size() - results))
    return;
  if (!backwardInBlocks(forward, e, interface)) evaluateBackwardWhole(forward, e, interface);
}

template void evaluateBackward(const ForwardMeaning<TermAlgebra>&, Evaluation<TermAlgebra>&,
                               const Interface&);
template void evaluateBackward(const ForwardMeaning<RealNumbers>&, Evaluation<RealNumbers>&,
                               const Interface&);
template void evaluateBackward(const ForwardMeaning<Residues>&, Evaluation<Residues>&,
                               const Interface&);

}  // namespace shardproof::ops
