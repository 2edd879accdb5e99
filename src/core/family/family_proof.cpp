// SPDX-License-Identifier: Apache-2.0
#include "family/family_proof.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "shardproof/error.h"

namespace shardproof {

namespace {

// Sizes at which the reduction is made and compared, from the least on: what is decided by a
// comparison of two linear functions is decided alike between two sizes that agree, and a remainder
// that is the same at two sizes in a row is the same at all.
constexpr std::int64_t kCompared = 12;
// A family that is of one kind only beyond this size is none.
constexpr std::int64_t kMostLeast = 64;

// All numbers of a reduction, and which tensors share their dimensions.
struct Skeleton {
  std::vector<std::int64_t> numbers, same;
  friend bool operator==(const Skeleton&, const Skeleton&) = default;
};

Skeleton skeletonOf(const ReducedStage& reduced) {
  Skeleton skeleton;
  std::map<const ops::ReducedDim*, std::int64_t> ids;
  for (const auto& dims : reduced.dims) {
    skeleton.same.push_back(static_cast<std::int64_t>(dims.size()));
    for (const ops::ReducedDim* dim : dims) {
      const auto [it, isNew] = ids.emplace(dim, static_cast<std::int64_t>(ids.size()));
      skeleton.same.push_back(it->second);
      if (!isNew) continue;
      skeleton.same.push_back(dim->size());
      skeleton.numbers.push_back(dim->full);
      skeleton.numbers.insert(skeleton.numbers.end(), dim->position.begin(), dim->position.end());
      skeleton.numbers.insert(skeleton.numbers.end(), dim->weight.begin(), dim->weight.end());
      skeleton.same.push_back(dim->factors);
      skeleton.same.push_back(static_cast<std::int64_t>(dim->places.size()));
      for (const ops::ReducedDim::Place& place : dim->places) {
        skeleton.same.insert(skeleton.same.end(), {place.piece, place.offset, place.reduced ? 1 : 0,
                                                   place.weighted ? 1 : 0});
        skeleton.numbers.push_back(place.start);
      }
    }
  }
  for (const auto& values : reduced.values) {
    skeleton.same.push_back(static_cast<std::int64_t>(values.size()));
    skeleton.numbers.insert(skeleton.numbers.end(), values.begin(), values.end());
  }
  for (const auto& first : reduced.firstOfOrbit) {
    skeleton.same.push_back(static_cast<std::int64_t>(first.size()));
    skeleton.same.insert(skeleton.same.end(), first.begin(), first.end());
  }
  for (const auto& [size, count] : reduced.pieces) {
    skeleton.numbers.push_back(size);
    skeleton.same.push_back(count);
  }
  skeleton.same.push_back(reduced.mostVariables);
  return skeleton;
}

// One proof with a prime in the size's place.
struct Attempt {
  Method method = Method::kNone;
  SizeSymbol::Trace trace;
  ReductionOptions reduction;
  std::vector<SizedNumber> numbers;  // of the reduction's shape
  std::vector<std::int64_t> same;
  std::vector<std::pair<SizedNumber, std::int64_t>> pieces;
};

// What the size is multiplied with in numbers of the stage, and in pieces of dimensions that a view
// regroups.
std::vector<std::int64_t> slopesOf(const StageFamily& family, const Stage& stage,
                                   std::int64_t prime) {
  std::vector<std::int64_t> slopes = family.slopes();
  const SizeSymbol size(prime, family.constants(), slopes);
  for (const auto& [whole, count] : reduceStage(stage, {}).pieces) {
    const SizedNumber piece = size.read(Rational(whole));
    const Rational slope = piece.power == 1 ? piece.constant : piece.slope;
    if (piece.dependsOnSize() && slope.sign() > 0 && slope.fitsInt64())
      slopes.push_back(slope.toInt64());
  }
  return slopes;
}

Attempt proveAt(const StageFamily& family, std::int64_t prime, const StageProver::Limits& limits,
                const WitnessMaker& witness) {
  const Stage stage = family.at(prime);
  SizeSymbol size(prime, family.constants(), slopesOf(family, stage, prime));
  const auto values = witness(stage);
  StageProver prover(stage, limits, *values);
  prover.readNumbersBy(size);
  prover.reduce();
  Attempt attempt;
  if (prover.byNormalForm()) attempt.method = Method::kNormalForm;
  else if (!prover.undefined().empty()) throw Unsupported(prover.undefined());
  else if (prover.byExpansion()) attempt.method = Method::kPolynomial;
  else {
    const std::string refusal = prover.takeRefusal();
    throw Unsupported("the two sides are not the same polynomials with the size as a variable" +
                      (refusal.empty() ? "" : "; " + refusal));
  }
  attempt.trace = size.trace();
  attempt.reduction = prover.reduction();
  const Skeleton skeleton = skeletonOf(prover.reduced());
  attempt.same = skeleton.same;
  for (const std::int64_t number : skeleton.numbers)
    attempt.numbers.push_back(size.read(Rational(number)));
  for (const auto& [whole, count] : prover.reduced().pieces)
    attempt.pieces.emplace_back(size.read(Rational(whole)), count);
  // What ranks or summands stand for is at least themselves.
  const auto atLeastOne = [&](std::int64_t weight) {
    attempt.pieces.emplace_back(size.read(Rational(weight)), 1);
  };
  for (const CollapsedAxis& axis : stage.collapsedAxes)
    for (const auto& [coordinate, weight] : axis.kept) atLeastOne(weight);
  for (const StageNode& node : stage.nodes)
    for (const std::int64_t weight : node.weight) atLeastOne(weight);
  for (const auto* equations : {&stage.claims, &stage.assumptions})
    for (const Equation& e : *equations)
      for (const auto& [tensor, weight] : e.parts) atLeastOne(weight);
  return attempt;
}

// The least size from which on each piece has as many positions as are kept.
std::int64_t leastFor(const std::vector<std::pair<SizedNumber, std::int64_t>>& pieces) {
  std::int64_t least = 1;
  for (const auto& [size, count] : pieces) {
    if (!size.dependsOnSize()) continue;
    if (size.slope.sign() < 0 || size.power < 0 ||
        (size.slope.isZero() && size.constant.sign() <= 0))
      throw Unsupported("a stretch of a dimension becomes shorter as the size grows");
    while (least <= kMostLeast && size.at(least) < Rational(count)) ++least;
  }
  return least;
}

}  // namespace

std::string FamilyProof::bytes() const {
  return std::to_string(static_cast<int>(method_)) + " " + std::to_string(least_) + " " +
         std::to_string(family_);
}

FamilyProof FamilyProof::fromBytes(const std::string& bytes) {
  std::istringstream in(bytes);
  FamilyProof proof;
  int method = 0;
  if (!(in >> method >> proof.least_ >> proof.family_) || proof.least_ < 1)
    throw std::invalid_argument("these are no bytes of a proof");
  proof.method_ = static_cast<Method>(method);
  return proof;
}

FamilyProof proveForAllSizes(const StageFamily& family, const StageProver::Limits& limits,
                             const WitnessMaker& witness) {
  const Attempt first = proveAt(family, SizeSymbol::kPrimes[0], limits, witness);
  const Attempt second = proveAt(family, SizeSymbol::kPrimes[1], limits, witness);
  if (first.trace != second.trace || first.numbers != second.numbers || first.same != second.same ||
      first.reduction.extraSummands != second.reduction.extraSummands)
    throw Unsupported("numbers of the proof are no simple functions of the size");
  FamilyProof proof;
  proof.method_ = first.method;
  proof.family_ = family.fingerprint();
  proof.least_ = leastFor(first.pieces);
  for (std::int64_t m = proof.least_; m < proof.least_ + kCompared; ++m) {
    bool agrees = false;
    try {
      const Stage stage = family.at(m);
      const Skeleton skeleton = skeletonOf(reduceStage(stage, first.reduction));
      agrees = skeleton.same == first.same && skeleton.numbers.size() == first.numbers.size();
      for (std::size_t i = 0; agrees && i < skeleton.numbers.size(); ++i)
        agrees = first.numbers[i].at(m) == Rational(skeleton.numbers[i]);
    } catch (const Unsupported&) {
    } catch (const NeedsRefinement&) {
    }
    if (!agrees) proof.least_ = m + 1;
    if (proof.least_ > kMostLeast)
      throw Unsupported("the shapes that a proof is about change with the size");
  }
  return proof;
}

}  // namespace shardproof
