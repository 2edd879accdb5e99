// SPDX-License-Identifier: Apache-2.0
#include "terms/functions.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "shardproof/error.h"

namespace shardproof::ops {
namespace {

void expect(bool condition, Function f, const char* what) {
  if (!condition) throw std::invalid_argument(std::string(name(f)) + ": " + what);
}

// The order that the parameters of kMaskEntry have when offsets are compared as numbers: -1, 0, 1.
int orderOfOffsets(std::span<const std::int64_t> params) {
  for (std::size_t i = 0; i + kPositionParams <= params.size(); i += kPositionParams) {
    if (params[i + 4] != 0) return params[i + 4] < 0 ? -1 : 1;
    if (params[i + 1] != params[i + 3]) return params[i + 1] < params[i + 3] ? -1 : 1;
  }
  return 0;
}

// The indices of the `count` largest scores among the candidates, largest first; of equal scores
// the smaller index comes first.
std::vector<std::size_t> best(std::vector<std::size_t> candidates, std::span<const double> scores,
                              std::size_t count) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  candidates.resize(std::min(count, candidates.size()));
  return candidates;
}

std::vector<std::size_t> firstIntegers(std::size_t n) {
  std::vector<std::size_t> v(n);
  std::iota(v.begin(), v.end(), std::size_t{0});
  return v;
}

// The choice of experts of `moe_gate` (docs/operators.md). params: {slot, topk, groups, topkGroups,
// sumOfTwoBest}.
double gateChoice(std::span<const std::int64_t> params, std::span<const double> scores) {
  constexpr Function f = Function::kGateChoice;
  expect(params.size() == 5, f,
         "expected five parameters: slot, topk, groups, topk_groups, sum_of_two_best");
  const std::int64_t slot = params[0];
  const std::int64_t topk = params[1];
  const std::int64_t groups = params[2];
  const std::int64_t topkGroups = params[3];
  const std::size_t experts = scores.size();
  expect(experts > 0 && slot >= 0 && slot < topk, f,
         "the slot must lie in [0, topk) and there must be experts");
  std::vector<std::size_t> candidates = firstIntegers(experts);
  if (groups > 1) {
    expect(experts % static_cast<std::size_t>(groups) == 0, f,
           "the groups must divide the experts");
    expect(topkGroups >= 1 && topkGroups <= groups, f, "topk_groups must lie in [1, groups]");
    const std::size_t size = experts / static_cast<std::size_t>(groups);
    std::vector<double> groupScore;
    for (std::size_t g = 0; g < static_cast<std::size_t>(groups); ++g) {
      double first = -std::numeric_limits<double>::infinity();
      double second = first;
      for (std::size_t e = g * size; e < (g + 1) * size; ++e) {
        if (scores[e] > first) {
          second = first;
          first = scores[e];
        } else if (scores[e] > second) {
          second = scores[e];
        }
      }
      groupScore.push_back(params[4] != 0 && size > 1 ? first + second : first);
    }
    const std::vector<std::size_t> chosen =
        best(firstIntegers(groupScore.size()), groupScore, static_cast<std::size_t>(topkGroups));
    std::erase_if(candidates, [&](std::size_t e) {
      return std::find(chosen.begin(), chosen.end(), e / size) == chosen.end();
    });
  }
  expect(static_cast<std::size_t>(topk) <= candidates.size(), f,
         "more experts are to be chosen than compete");
  return static_cast<double>(best(std::move(candidates), scores,
                                  static_cast<std::size_t>(topk))[static_cast<std::size_t>(slot)]);
}

// One bit that depends on every parameter. The real generator's bits are unknown to the proof as
// well; all that matters is that the same position gets the same bit everywhere.
double dropoutBit(std::span<const std::int64_t> params) {
  std::uint64_t h = 0x9e3779b97f4a7c15ULL;
  for (const std::int64_t p : params) {
    h ^= static_cast<std::uint64_t>(p);
    h *= 0xbf58476d1ce4e5b9ULL;
    h ^= h >> 29;
    h *= 0x94d049bb133111ebULL;
    h ^= h >> 32;
  }
  return static_cast<double>(h & 1);
}

}  // namespace

bool comparesWithItself(std::span<const std::int64_t> params) {
  if (params.empty() || params.size() % kPositionParams != 0) return false;
  for (std::size_t i = 0; i < params.size(); i += kPositionParams) {
    if (params[i] != params[i + 2] || params[i + 1] != params[i + 3] || params[i + 4] != 0)
      return false;
  }
  return true;
}

const char* name(Function f) {
  switch (f) {
    case Function::kSigmoid:
      return "sigmoid";
    case Function::kTanh:
      return "tanh";
    case Function::kLog:
      return "log";
    case Function::kNormalCdf:
      return "normal_cdf";
    case Function::kNormalPdf:
      return "normal_pdf";
    case Function::kStep:
      return "step";
    case Function::kSine:
      return "sin";
    case Function::kCosine:
      return "cos";
    case Function::kErf:
      return "erf";
    case Function::kFloor:
      return "floor";
    case Function::kCeil:
      return "ceil";
    case Function::kRound:
      return "round";
    case Function::kTruncate:
      return "trunc";
    case Function::kSqrtTwoOverPi:
      return "sqrt_two_over_pi";
    case Function::kMaximum:
      return "max";
    case Function::kMinimum:
      return "min";
    case Function::kGateChoice:
      return "gate_choice";
    case Function::kMaskEntry:
      return "mask_entry";
    case Function::kDropoutMask:
      return "dropout_mask";
  }
  return "unknown";
}

bool isSymmetric(Function f) { return f == Function::kMaximum || f == Function::kMinimum; }

// A nan among the arguments must survive, here and wherever a comparison would swallow it: it says
// that the point lies outside the domain, and a counterexample from there would be none.
double evaluate(Function f, std::span<const std::int64_t> params,
                std::span<const double> arguments) {
  const auto one = [&] {
    expect(arguments.size() == 1, f, "expected one argument");
    return arguments[0];
  };
  switch (f) {
    case Function::kSigmoid: {
      const double x = one();
      // Two forms, so that neither overflows.
      if (x >= 0) return 1 / (1 + std::exp(-x));
      const double e = std::exp(x);
      return e / (1 + e);
    }
    case Function::kTanh:
      return std::tanh(one());
    case Function::kLog:
      return one() > 0 ? std::log(one())
                       : std::numeric_limits<double>::quiet_NaN();  // of zero there is none, minus
                                                                    // infinity is no value of it
    case Function::kNormalCdf:
      return 0.5 * std::erfc(-one() * 0.70710678118654752440);
    case Function::kNormalPdf: {
      const double x = one();
      return 0.39894228040143267794 * std::exp(-0.5 * x * x);
    }
    case Function::kStep: {
      const double x = one();
      return std::isnan(x) ? x : x > 0 ? 1 : 0;
    }
    case Function::kSine:
      return std::sin(one());
    case Function::kCosine:
      return std::cos(one());
    case Function::kErf:
      return std::erf(one());
    case Function::kFloor:
      return std::floor(one());
    case Function::kCeil:
      return std::ceil(one());
    case Function::kRound:
      return std::nearbyint(one());
    case Function::kTruncate:
      return std::trunc(one());
    case Function::kSqrtTwoOverPi:
      return 0.79788456080286535588;
    case Function::kMaximum:
    case Function::kMinimum: {
      expect(!arguments.empty(), f, "expected at least one argument");
      double result = arguments[0];
      for (const double x : arguments) {
        if (std::isnan(x)) return x;
        result = f == Function::kMaximum ? std::max(result, x) : std::min(result, x);
      }
      return result;
    }
    case Function::kGateChoice:
      for (const double x : arguments) {
        if (std::isnan(x)) return x;
      }
      return gateChoice(params, arguments);
    // By the pieces' first positions: some mask, not the causal one (functions.h).
    case Function::kMaskEntry:
      return orderOfOffsets(params) >= 0 ? 0 : -std::numeric_limits<double>::infinity();
    case Function::kDropoutMask:
      return dropoutBit(params);
  }
  throw std::invalid_argument("unknown function");
}

}  // namespace shardproof::ops
