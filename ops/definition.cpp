// SPDX-License-Identifier: Apache-2.0
#include "ops/definition.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

namespace shardproof::ops {
namespace {

template <class F>
auto named(const std::string& name, F&& f) {
  try {
    return f();
  } catch (const DimensionError& e) {
    throw DimensionError(name + ": " + e.what());
  } catch (const ShapeError& e) {
    throw ShapeError(name + ": " + e.what());
  } catch (const Unsupported& e) {
    throw Unsupported(name + ": " + e.what());
  } catch (const std::invalid_argument& e) {
    throw std::invalid_argument(name + ": " + e.what());
  }
}

std::string countText(std::size_t least, std::size_t most) {
  if (least == most) return std::to_string(least);
  if (most == kAnyNumber) return "at least " + std::to_string(least);
  return std::to_string(least) + " to " + std::to_string(most);
}

void checkCount(const char* what, std::size_t found, std::size_t least, std::size_t most) {
  if (found < least || found > most)
    throw std::invalid_argument("found " + std::to_string(found) + " " + what + ", expected " +
                                countText(least, most));
}

std::vector<TensorInfo> inferForward(const Interface& interface, const Infer& infer,
                                     const Signature& s) {
  for (std::size_t i = 0; i < s.in.size(); ++i) {
    const auto& optional = interface.optionalOperands;
    if (s.in[i] == nullptr && !interface.everyOperandOptional &&
        std::find(optional.begin(), optional.end(), i) == optional.end())
      throw ShapeError("operand " + std::to_string(i) + " is absent (null), expected a tensor");
  }
  return infer(s);
}

// The operands and inferred results of the forward call inside a backward call.
struct ForwardCall {
  std::span<const TensorInfo* const> in;
  std::vector<TensorInfo> results;
};

bool sameButForOnes(const Shape& a, const Shape& b) {
  return elements(a) == 1 && elements(b) == 1 && a.size() <= 1 && b.size() <= 1;
}

ForwardCall forwardCall(const Interface& interface, const Infer& infer, const Signature& s) {
  const std::size_t results = interface.minResults;
  if (s.in.size() < results + interface.minOperands)
    throw ShapeError("found " + std::to_string(s.in.size()) + " operands, expected " +
                     std::to_string(results) + " gradients and the operands of " + interface.name);
  ForwardCall call;
  call.in = s.in.subspan(results);
  if (s.results != call.in.size())
    throw ShapeError("found " + std::to_string(s.results) +
                     " results, expected one (or null) for each of the " +
                     std::to_string(call.in.size()) + " operands of " + interface.name);
  const Signature forward{s.attributes, call.in, results};
  call.results = inferForward(interface, infer, forward);
  bool any = false;
  for (std::size_t r = 0; r < results; ++r) {
    const TensorInfo* g = s.in[r];
    if (g == nullptr) continue;
    any = true;
    TensorInfo& y = call.results[r];
    if (y.element != ElementKind::kReal)
      throw ShapeError("operand " + std::to_string(r) +
                       " is the gradient of integers, expected null");
    if (g->element != ElementKind::kReal)
      throw ShapeError("the gradient, operand " + std::to_string(r) +
                       ", does not hold real numbers");
    if (g->shape != y.shape && !(interface.scalarMayBeOne && sameButForOnes(g->shape, y.shape)))
      throw ShapeError("the gradient, operand " + std::to_string(r) + ", has shape " +
                       toText(g->shape) + ", expected " + toText(y.shape));
    y.shape = g->shape;
  }
  if (!any) throw ShapeError("every gradient is absent (null), expected at least one");
  return call;
}

bool hasGradient(const Interface& interface, const TensorInfo* operand, std::size_t i) {
  const auto& without = interface.withoutGradient;
  return operand != nullptr && operand->element == ElementKind::kReal &&
         std::find(without.begin(), without.end(), i) == without.end();
}

// Drops relations to slots that hold no tensor. Nothing may be lost through them: operators relate
// operands to one another directly where several results exist, and absent results of a backward
// call are replaced by virtual tensors.
class PresentOnly final : public Relations {
 public:
  PresentOnly(Relations& to, std::vector<bool> present) : to_(to), present_(std::move(present)) {}
  void equal(DimRef a, DimRef b) override {
    if (is(a) && is(b)) to_.equal(a, b);
  }
  void range(DimRef whole, std::int64_t lo, DimRef part) override {
    if (is(whole) && is(part)) to_.range(whole, lo, part);
  }
  void regroup(std::span<const DimRef> a, std::span<const DimRef> b) override {
    const auto all = [this](std::span<const DimRef> s) {
      return std::all_of(s.begin(), s.end(), [this](DimRef d) { return is(d); });
    };
    if (all(a) && all(b)) to_.regroup(a, b);
  }
  void pairs(DimRef whole, DimRef half) override {
    if (is(whole) && is(half)) to_.pairs(whole, half);
  }
  void summed(DimRef d) override {
    if (is(d)) to_.summed(d);
  }
  void keep(DimRef d) override {
    if (is(d)) to_.keep(d);
  }
  void absolute(DimRef d) override {
    if (is(d)) to_.absolute(d);
  }
  void iterates(std::span<const DimRef> dims) override {
    std::vector<DimRef> some;
    std::copy_if(dims.begin(), dims.end(), std::back_inserter(some),
                 [this](DimRef d) { return is(d); });
    to_.iterates(some);
  }
  void virtualTensor(int slot, const Shape& shape) override { to_.virtualTensor(slot, shape); }

 private:
  bool is(DimRef d) const { return at(d.slot) >= present_.size() || present_[at(d.slot)]; }
  Relations& to_;
  std::vector<bool> present_;
};

// Carries the relations of a forward call over to the slots of the backward call (results are
// played by their gradients), and works out what the backward call sums over.
//
// y[r] = sum over s of f, with r the result's dimensions and s the summed ones. The gradient of an
// operand X at p is the sum, over all (r, s) in which the forward call reads X at p, of g[r] times
// a derivative. A dimension of r that runs with a dimension of X (equal, a range or a regrouping of
// it) is fixed by p; every other dimension of r is summed, and so may be every s (softmax: X runs
// with s and with r at once).
class BackwardRelations final : public Relations {
 public:
  BackwardRelations(Relations& to, const Signature& backward, const ForwardCall& call,
                    std::size_t results)
      : to_(to), operands_(call.in.size()), results_(results) {
    const std::size_t real = results_ + 2 * operands_;
    for (std::size_t i = 0; i < operands_; ++i) slot_.push_back(static_cast<int>(results_ + i));
    for (std::size_t r = 0; r < results_; ++r) {
      const bool absent = backward.in[r] == nullptr;
      slot_.push_back(static_cast<int>(absent ? real + r : r));
      if (absent) to_.virtualTensor(slot_.back(), call.results[r].shape);
    }
    firstOwnVirtual_ = static_cast<int>(real + results_);
  }

  void equal(DimRef a, DimRef b) override {
    unite(a, b);
    to_.equal(map(a), map(b));
  }
  void range(DimRef whole, std::int64_t lo, DimRef part) override {
    unite(whole, part);
    to_.range(map(whole), lo, map(part));
  }
  void regroup(std::span<const DimRef> a, std::span<const DimRef> b) override {
    for (const DimRef d : a) unite(d, a[0]);
    for (const DimRef d : b) unite(d, a[0]);
    to_.regroup(map(a), map(b));
  }
  void pairs(DimRef whole, DimRef half) override {
    unite(whole, half);
    to_.pairs(map(whole), map(half));
  }
  void summed(DimRef d) override { to_.summed(map(d)); }
  void keep(DimRef d) override { to_.keep(map(d)); }
  void absolute(DimRef d) override { to_.absolute(map(d)); }
  void iterates(std::span<const DimRef> dims) override { to_.iterates(map(dims)); }
  void virtualTensor(int slot, const Shape& shape) override {
    to_.virtualTensor(mapSlot(slot), shape);
  }

  void finish(const Interface& interface, const Signature& backward, const ForwardCall& call,
              const std::vector<bool>& wanted) {
    for (std::size_t r = 0; r < results_; ++r) {
      if (backward.in[r] == nullptr) continue;  // nothing flows back from this result
      std::set<Key> seen;
      for (std::size_t d = 0; d < call.results[r].shape.size(); ++d) {
        const DimRef dim = ref(operands_ + r, d);
        const Key c = find(key(dim));
        bool sums = !seen.insert(c).second;  // two dimensions of one result that run together: p
                                             // fixes only one of them
        for (std::size_t i = 0; i < operands_ && !sums; ++i) {
          if (!wanted[i] || (interface.separate && i != r)) continue;
          bool fixed = false;
          for (std::size_t x = 0; x < call.in[i]->shape.size() && !fixed; ++x)
            fixed = find(key(ref(i, x))) == c;
          sums = !fixed;
        }
        if (sums) to_.summed(map(dim));
      }
    }
    for (std::size_t i = 0; i < operands_; ++i) {
      if (!wanted[i]) continue;
      for (std::size_t d = 0; d < call.in[i]->shape.size(); ++d)
        to_.equal(ref(results_ + operands_ + i, d), ref(results_ + i, d));
    }
  }

 private:
  using Key = std::pair<int, int>;
  static Key key(DimRef d) { return {d.slot, d.dim}; }
  Key find(Key k) const {
    for (auto it = parent_.find(k); it != parent_.end() && it->second != k; it = parent_.find(k))
      k = it->second;
    return k;
  }
  void unite(DimRef a, DimRef b) {
    const Key x = find(key(a)), y = find(key(b));
    if (x != y) parent_[x] = y;
  }
  int mapSlot(int slot) const {
    return at(slot) < slot_.size() ? slot_[at(slot)]
                                   : firstOwnVirtual_ + (slot - static_cast<int>(slot_.size()));
  }
  DimRef map(DimRef d) const { return {mapSlot(d.slot), d.dim}; }
  std::vector<DimRef> map(std::span<const DimRef> dims) const {
    std::vector<DimRef> mapped;
    for (const DimRef d : dims) mapped.push_back(map(d));
    return mapped;
  }

  Relations& to_;
  std::size_t operands_, results_;
  std::vector<int> slot_;  // of the forward call -> of the backward call
  int firstOwnVirtual_ = 0;
  std::map<Key, Key> parent_;
};

std::vector<bool> presence(std::span<const TensorInfo* const> in,
                           std::span<const TensorInfo* const> out) {
  std::vector<bool> present;
  for (const TensorInfo* t : in) present.push_back(t != nullptr);
  for (const TensorInfo* t : out) present.push_back(t != nullptr);
  return present;
}

}  // namespace

OperatorInfo makeForward(const Interface& interface, const Infer& infer, const Relate& relate) {
  OperatorInfo op;
  op.name = interface.name;
  op.scalarMayBeOne = interface.scalarMayBeOne;
  op.traits = interface.traits;
  op.traits.moves = op.traits.moves || op.traits.rearranges;
  op.traits.picks = op.traits.picks || op.traits.moves;
  op.attributes = interface.attributes;
  op.minOperands = interface.minOperands;
  op.maxOperands = interface.maxOperands;
  op.minResults = interface.minResults;
  op.maxResults = interface.maxResults;
  op.differentiable = interface.differentiable;
  op.followsLogicalPosition = interface.followsLogicalPosition;
  op.validate = [interface](const Attributes& attributes, std::size_t operands,
                            std::size_t results) {
    named(interface.name, [&] {
      checkAttributes(interface.attributes, attributes);
      checkCount("operands", operands, interface.minOperands, interface.maxOperands);
      checkCount("results", results, interface.minResults, interface.maxResults);
      if (interface.check) interface.check(attributes, operands, results);
    });
  };
  op.infer = [interface, infer](const Signature& s) {
    return named(interface.name, [&] { return inferForward(interface, infer, s); });
  };
  op.relate = [interface, relate](const Signature& s, std::span<const TensorInfo* const> out,
                                  Relations& relations) {
    named(interface.name, [&] {
      PresentOnly present(relations, presence(s.in, out));
      relate(s, out, present);
    });
  };
  return op;
}

OperatorInfo makeBackward(const Interface& interface, const Infer& infer, const Relate& relate) {
  OperatorInfo op;
  op.name = interface.name + "_backward";
  // The gradient is arranged back. A function that has a value everywhere has its derivative (as
  // PyTorch defines it at kinks) everywhere.
  op.traits.rearranges = op.traits.moves = op.traits.picks = interface.traits.rearranges;
  op.traits.affine = interface.traits.rearranges;
  op.traits.total = interface.traits.total;
  op.traits.finite = interface.traits.finite || interface.finiteGradient;
  op.attributes = interface.attributes;
  op.minOperands = interface.minOperands + interface.minResults;
  op.maxOperands = interface.maxOperands == kAnyNumber
                       ? kAnyNumber
                       : interface.maxOperands + interface.minResults;
  op.minResults = interface.minOperands;
  op.maxResults = interface.maxOperands;
  op.followsLogicalPosition = interface.followsLogicalPosition;
  op.validate = [interface, name = op.name, least = op.minOperands, most = op.maxOperands](
                    const Attributes& attributes, std::size_t operands, std::size_t results) {
    named(name, [&] {
      const std::size_t gradients = interface.minResults;
      checkAttributes(interface.attributes, attributes);
      checkCount("operands (gradients, then operands)", operands, least, most);
      checkCount("results", results, operands - gradients, operands - gradients);
      if (interface.check) interface.check(attributes, operands - gradients, gradients);
    });
  };
  op.infer = [interface, infer, name = op.name](const Signature& s) {
    return named(name, [&] {
      const ForwardCall call = forwardCall(interface, infer, s);
      std::vector<TensorInfo> results;
      for (std::size_t i = 0; i < call.in.size(); ++i) {
        TensorInfo info;
        if (call.in[i] != nullptr) info.shape = call.in[i]->shape;
        info.absent = !hasGradient(interface, call.in[i], i);
        results.push_back(std::move(info));
      }
      return results;
    });
  };
  op.relate = [interface, infer, relate, name = op.name](const Signature& s,
                                                         std::span<const TensorInfo* const> out,
                                                         Relations& relations) {
    named(name, [&] {
      const ForwardCall call = forwardCall(interface, infer, s);
      std::vector<bool> wanted(call.in.size());
      for (std::size_t i = 0; i < call.in.size(); ++i) {
        wanted[i] = i < out.size() && out[i] != nullptr;
        if (wanted[i] && !hasGradient(interface, call.in[i], i))
          throw Unsupported("result " + std::to_string(i) + ": operand " + std::to_string(i) +
                            " of " + interface.name + " has no gradient");
      }
      PresentOnly present(relations, presence(s.in, out));
      BackwardRelations backward(present, s, call, interface.minResults);
      std::vector<const TensorInfo*> results;
      for (const TensorInfo& r : call.results) results.push_back(&r);
      relate(Signature{s.attributes, call.in, interface.minResults}, results, backward);
      backward.finish(interface, s, call, wanted);
    });
  };
  return op;
}

bool present(const Signature& s, std::size_t i) { return i < s.in.size() && s.in[i] != nullptr; }

const Shape& shapeOf(const Signature& s, std::size_t i) { return s.in[i]->shape; }

namespace {
const char* describe(ElementKind kind) {
  switch (kind) {
    case ElementKind::kReal:
      return "real numbers";
    case ElementKind::kInteger:
      return "integers";
    case ElementKind::kComplex:
      return "complex numbers";
  }
  return "";
}
void needKind(const Signature& s, std::size_t i, ElementKind kind) {
  if (s.in[i]->element != kind)
    throw ShapeError("operand " + std::to_string(i) + " holds " + describe(s.in[i]->element) +
                     ", expected " + describe(kind));
}
}  // namespace

void needReal(const Signature& s, std::size_t i) { needKind(s, i, ElementKind::kReal); }
void needInteger(const Signature& s, std::size_t i) { needKind(s, i, ElementKind::kInteger); }
void needComplex(const Signature& s, std::size_t i) { needKind(s, i, ElementKind::kComplex); }

void needRank(const Signature& s, std::size_t i, std::size_t rank, const char* expected) {
  if (shapeOf(s, i).size() != rank)
    throw ShapeError("operand " + std::to_string(i) + " has shape " + toText(shapeOf(s, i)) +
                     ", expected " + expected);
}

std::size_t dimIndex(std::int64_t dim, std::size_t rank) {
  const auto n = static_cast<std::int64_t>(rank);
  if (dim < -n || dim >= n)
    throw DimensionError("found dimension " + std::to_string(dim) + ", expected " +
                         (n == 0 ? std::string("none (a scalar)")
                                 : std::to_string(-n) + " to " + std::to_string(n - 1)));
  return static_cast<std::size_t>(dim < 0 ? dim + n : dim);
}

Shape broadcastShapes(const Shape& a, const Shape& b) {
  Shape result(std::max(a.size(), b.size()), 1);
  for (std::size_t d = 0; d < result.size(); ++d) {
    const std::int64_t x = d < a.size() ? a[a.size() - 1 - d] : 1,
                       y = d < b.size() ? b[b.size() - 1 - d] : 1;
    if (x != y && x != 1 && y != 1)
      throw ShapeError("shapes " + toText(a) + " and " + toText(b) + " do not broadcast");
    result[result.size() - 1 - d] = x == 1 ? y : x;
  }
  return result;
}

std::int64_t elements(const Shape& shape) {
  std::int64_t n = 1;
  for (const std::int64_t d : shape)
    if (__builtin_mul_overflow(n, d, &n))
      throw ShapeError("shape " + toText(shape) + " has too many elements");
  return n;
}

void equalTensors(const Signature& s, std::size_t operand, int otherSlot, Relations& relations) {
  for (std::size_t d = 0; d < shapeOf(s, operand).size(); ++d)
    relations.equal(ref(operand, d), ref(otherSlot, d));
  if (s.in[operand]->element == ElementKind::kInteger)
    relations.equal({static_cast<int>(operand), kValues}, {otherSlot, kValues});
}

void equalBroadcast(const Signature& s, std::size_t operand, int resultSlot, const Shape& result,
                    Relations& relations) {
  const Shape& own = shapeOf(s, operand);
  const std::size_t lead = result.size() - own.size();
  for (std::size_t d = 0; d < own.size(); ++d)
    if (own[d] == result[lead + d]) relations.equal(ref(operand, d), ref(resultSlot, lead + d));
}

void relateLabels(const ContractionLabels& labels, int resultSlot, Relations& relations) {
  std::vector<std::pair<int, DimRef>> first;
  const auto tie = [&](int label, DimRef dim) {
    if (label < 0) return;
    const auto known = std::find_if(first.begin(), first.end(),
                                    [label](const auto& p) { return p.first == label; });
    if (known == first.end()) first.emplace_back(label, dim);
    else relations.equal(known->second, dim);
  };
  for (std::size_t i = 0; i < labels.operands.size(); ++i)
    for (std::size_t d = 0; d < labels.operands[i].size(); ++d)
      tie(labels.operands[i][d], ref(i, d));
  for (std::size_t d = 0; d < labels.result.size(); ++d) tie(labels.result[d], ref(resultSlot, d));
  for (const auto& [label, dim] : first)
    if (std::find(labels.result.begin(), labels.result.end(), label) == labels.result.end())
      relations.summed(dim);
}

}  // namespace shardproof::ops
